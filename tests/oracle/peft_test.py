# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Adapters of mini-llama against Hugging Face PEFT.

- PEFT loads an adapter of mini-llama, and its loss in float64 equals `mini-llama eval` in FP32.
- Adapters that PEFT saved, on a base that transformers saved, give the same loss in both.
- Both merge to the same weights.
- A run that starts with PEFT's adapters takes PEFT's steps under torch's AdamW.

Skips (77) without torch, transformers or peft. ROTOSCALE_ORACLE_PYTHON may name an interpreter that has them.

usage: peft_test.py MINI_LLAMA
"""

import pathlib
import sys
import tempfile

import oracle

torch, transformers, peft, safetensors = oracle.require("torch", "transformers", "peft", "safetensors.torch")

import llama  # noqa: E402  needs what is required above

SAVED = {
    "query and value": ("float32", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}),
    "all in BF16": ("bfloat16", {"r": 8, "lora_alpha": 4, "lora_dropout": 0.2, "target_modules": "all-linear"}),
    "rank-stabilised": ("float32",
                        {"r": 5, "lora_alpha": 3, "use_rslora": True, "target_modules": ["o_proj", "up_proj"]}),
}


def load_base(folder, **options):
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64, **options)


def save_adapter(base, folder, dtype, options):
    """An adapter with random A and B."""
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM.from_pretrained(base)
    model = peft.get_peft_model(model, peft.LoraConfig(init_lora_weights=False, task_type="CAUSAL_LM", **options))
    model.to(getattr(torch, dtype)).save_pretrained(folder)


def merge_distance(base, adapter, merged):
    """Largest difference of merged weights, FP32 here against float64 in PEFT, in half units in the last place."""
    model = peft.PeftModel.from_pretrained(load_base(base), adapter).double().merge_and_unload()
    ours, worst = safetensors.load_file(merged / "model.safetensors"), 0.0
    theirs = {name: t for name, t in model.state_dict().items() if name in ours}
    assert set(theirs) == set(ours), set(theirs) ^ set(ours)
    for name, t in theirs.items():
        half_ulp = torch.clamp(t.abs(), min=2.0**-126) * 2.0**-24
        worst = max(worst, ((ours[name].double() - t).abs() / half_ulp).max().item())
    return worst


def training_distance(base, adapter, ours, tokens, steps, rate):
    """PEFT trains a saved adapter on one sequence under torch's AdamW. Returns the distance between the adapters,
    relative to PEFT's distance from the start. Without steps: the absolute distance."""
    model = peft.PeftModel.from_pretrained(load_base(base, attn_implementation="eager"), adapter, is_trainable=True)
    model = model.double().eval()  # no dropout
    trained = {name.replace(".default", ""): p for name, p in model.named_parameters() if p.requires_grad}
    first = {name: p.detach().clone() for name, p in trained.items()}
    optimizer = torch.optim.AdamW(trained.values(), lr=rate, betas=(0.9, 0.95), eps=1e-3, weight_decay=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(input_ids=tokens[None, :-1]).logits[0], tokens[1:]).backward()
        optimizer.step()
    got = safetensors.load_file(ours / "adapter_model.safetensors")
    assert set(got) == set(trained), set(got) ^ set(trained)
    away = sum(((got[name].double() - p.detach()) ** 2).sum() for name, p in trained.items()) ** 0.5
    went = sum(((first[name] - p.detach()) ** 2).sum() for name, p in trained.items()) ** 0.5
    return (away / went).item() if steps else away.item()


class Comparison:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.data = llama.write_text(folder / "text")
        self.periodic = llama.write_periodic(folder / "periodic", self.data)
        self.base = folder / "base"
        llama.save_model(self.base, num_key_value_heads=2)

    def check(self, name, adapter):
        given = ("--checkpoint", self.base, "--recipe", "fp32", "--data", self.data)
        theirs = llama.compare_losses(name, self.program.eval(*given, "--adapter", adapter), self.base, adapter,
                                      self.data)
        without = self.program.eval(*given)["val_loss"]
        print(f"{name}: without the adapter {without}")
        assert abs(theirs - without) > 1e-3, "the adapter does nothing"
        merged = self.folder / f"merged {name}"
        self.program.run("merge", "--base", self.base, "--adapter", adapter, "--out", merged)
        worst = merge_distance(self.base, adapter, merged)
        print(f"{name}: merged weights differ by {worst:.3f} half units in the last place")
        # Rounded once: half a unit, and the float64 rounding of a sum of at most 16 products.
        assert worst <= 1.0 + 1e-6, "the merged weights differ"

    def check_training(self, name, adapter):
        for steps, rate, most in ((1, 0.0, 0.0), (6, 0.01, 1e-4)):
            trained = self.program.train(
                "--data", self.periodic, "--out", self.folder / f"{name} trained {steps}", "--init", self.base,
                "--adapter", adapter,
                "--steps", steps, "--batch", 2, "--sequence", llama.SEQUENCE, "--learning-rate", rate,
                "--final-learning-rate", 1,
                "--warmup", 0, "--epsilon", 1e-3, "--weight-decay", 0.1, "--clip", 0, "--lora-dropout", 0)
            tokens = llama.first_window(self.periodic)
            share = training_distance(self.base, adapter, trained, tokens, steps if rate else 0, rate)
            print(f"{name}: after {steps} steps at {rate} {share:.2g} away from PEFT's")
            assert share <= most, "another run than PEFT's"
        self.check(f"{name} trained", trained)


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        c = Comparison(llama.Program(sys.argv[1]), folder)
        for name, (dtype, options) in SAVED.items():
            save_adapter(c.base, folder / name, dtype, options)
            c.check(name, folder / name)
            c.check_training(name, folder / name)
        for name, targets in (("ours, fused", "qkv_proj,o_proj,gate_up_proj,down_proj"),
                              ("ours, split", "k_proj,v_proj,down_proj")):
            c.check(name, c.program.train(
                "--data", c.data, "--out", folder / name, "--init", c.base, "--steps", 20, "--batch", 4, "--sequence",
                llama.SEQUENCE,
                "--learning-rate", 0.02, "--lora-rank", 6, "--lora-alpha", 9, "--lora-targets", targets))


if __name__ == "__main__":
    main()

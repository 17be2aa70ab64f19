# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Adapters of mini-llama loaded by Hugging Face PEFT in float64 give the loss that `mini-llama eval` gives in FP32, and so do
adapters that PEFT saved, beside a base that transformers saved; both merge to the same weights, and a run that begins with
PEFT's adapters takes the steps that PEFT takes under torch's AdamW. Skips (77) where torch, transformers or peft is missing;
ROTOSCALE_ORACLE_PYTHON may name an interpreter that has them.
usage: peft_test.py MINI_LLAMA"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

SEQUENCE, WINDOWS = 64, 8
HERE = pathlib.Path(__file__).parent
# Run by the interpreter that has peft: saves a base, or an adapter with random A and B beside it.
SAVE = """
import json, sys, torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
base, adapter, dtype, options = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
torch.manual_seed(1)
if not adapter:
    config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2)
    LlamaForCausalLM(config).save_pretrained(base)
else:
    model = get_peft_model(LlamaForCausalLM.from_pretrained(base), LoraConfig(init_lora_weights=False, task_type="CAUSAL_LM", **options))
    model.to(getattr(torch, dtype)).save_pretrained(adapter)
"""
# Largest difference of merged weights: ours in FP32, theirs in float64.
MERGE = """
import sys, torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import LlamaForCausalLM
base, adapter, merged = sys.argv[1:]
model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float64)
model = PeftModel.from_pretrained(model, adapter).double().merge_and_unload()
ours, worst = load_file(merged + "/model.safetensors"), 0.0
theirs = {name: t for name, t in model.state_dict().items() if name in ours}
assert set(theirs) == set(ours), set(theirs) ^ set(ours)
for name, t in theirs.items():
    half_ulp = torch.clamp(t.abs(), min=2.0**-126) * 2.0**-24
    worst = max(worst, ((ours[name].double() - t).abs() / half_ulp).max().item())
print(worst)
"""
# PEFT's own training of a saved adapter, on one sequence that every window of the text is: the distance of ours from theirs,
# as a share of how far theirs went; of no steps, that of the values.
TRAIN = """
import sys, torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import LlamaForCausalLM
base, adapter, ours, text, sequence, steps, rate = sys.argv[1:]
model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float64, attn_implementation="eager")
model = PeftModel.from_pretrained(model, adapter, is_trainable=True).double().eval()  # no dropout
trained = {name.replace(".default", ""): p for name, p in model.named_parameters() if p.requires_grad}
first = {name: p.detach().clone() for name, p in trained.items()}
tokens = torch.tensor(list(open(text, "rb").read(int(sequence) + 1)))
optimizer = torch.optim.AdamW(trained.values(), lr=float(rate), betas=(0.9, 0.95), eps=1e-3, weight_decay=0.1)
for _ in range(int(steps)):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(input_ids=tokens[None, :-1]).logits[0], tokens[1:]).backward()
    optimizer.step()
got = load_file(ours + "/adapter_model.safetensors")
assert set(got) == set(trained), set(got) ^ set(trained)
away = sum(((got[name].double() - p.detach()) ** 2).sum() for name, p in trained.items()) ** 0.5
went = sum(((first[name] - p.detach()) ** 2).sum() for name, p in trained.items()) ** 0.5
print((away / went).item() if int(steps) else away.item())
"""
SAVED = {
    "query and value": ("float32", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}),
    "all in BF16": ("bfloat16", {"r": 8, "lora_alpha": 4, "lora_dropout": 0.2, "target_modules": "all-linear"}),
    "rank-stabilised": ("float32", {"r": 5, "lora_alpha": 3, "use_rslora": True, "target_modules": ["o_proj", "up_proj"]}),
}


class Comparison:
    def __init__(self, program, python, folder):
        self.program, self.python, self.folder = program, python, folder
        state, text = 1, bytearray()
        for _ in range(20 * (WINDOWS * SEQUENCE + 1)):
            state = (state * 1103515245 + 12345) % 2**31
            text.append(97 + (state >> 16) % 7 * (state >> 20) % 26)
        self.data = folder / "text"
        self.data.write_bytes(text)

    def run(self, *command):
        return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout

    def check(self, name, base, adapter, *options):
        ours = json.loads(self.run(self.program, "eval", "--checkpoint", base, "--adapter", adapter, "--recipe", "fp32", "--data",
                                   self.data, "--windows", WINDOWS, *options))
        size = self.data.stat().st_size
        held_out = round(size * 0.05)
        windows = (held_out - 1) // ours["sequence"]
        assert 0 < windows <= WINDOWS
        theirs = float(self.run(self.python, HERE / "transformers_reference.py", "--checkpoint", base, "--adapter", adapter, "--data",
                                self.data, "--offset", size - held_out, "--windows", windows, "--seq", ours["sequence"]).split()[-1])
        without = json.loads(self.run(self.program, "eval", "--checkpoint", base, "--recipe", "fp32", "--data", self.data, "--windows",
                                      WINDOWS))["val_loss"]
        print(f"{name}: ours {ours['val_loss']}, PEFT {theirs}, without the adapter {without}")
        # As in transformers_test.py.
        assert abs(ours["val_loss"] - theirs) < 1e-6, "the losses differ"
        assert abs(theirs - without) > 1e-3, "the adapter does nothing"
        merged = self.folder / f"merged {name}"
        self.run(self.program, "merge", "--base", base, "--adapter", adapter, "--out", merged)
        worst = float(self.run(self.python, "-c", MERGE, base, adapter, merged))
        print(f"{name}: merged weights differ by {worst:.3f} half units in the last place")
        # Rounded once: half a unit, and what float64 leaves of a sum of at most 16 products.
        assert worst <= 1.0 + 1e-6, "the merged weights differ"


    def check_training(self, name, base, adapter):
        """Every window of this text is the same, so it does not matter which ones a step takes."""
        text = self.folder / "periodic"
        text.write_bytes(self.data.read_bytes()[:SEQUENCE] * 400)
        for steps, rate, most in ((1, 0, 0.0), (6, 0.01, 1e-4)):
            run = self.folder / f"{name} trained {steps}"
            self.run(self.program, "train", "--data", text, "--out", run, "--init", base, "--adapter", adapter, "--recipe", "fp32",
                     "--steps", steps, "--batch", 2, "--sequence", SEQUENCE, "--learning-rate", rate, "--final-learning-rate", 1,
                     "--warmup", 0, "--epsilon", 1e-3, "--weight-decay", 0.1, "--clip", 0, "--lora-dropout", 0)
            checkpoint = next((run / "checkpoints").iterdir())
            share = float(self.run(self.python, "-c", TRAIN, base, adapter, checkpoint, text, SEQUENCE, steps if rate else 0, rate))
            print(f"{name}: after {steps} steps at {rate} {share:.2g} away from PEFT's")
            assert share <= most, "another run than PEFT's"
        self.check(f"{name} trained", base, checkpoint)


def main():
    python = os.environ.get("ROTOSCALE_ORACLE_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch, transformers, peft"], capture_output=True).returncode != 0:
        print("skipped: torch, transformers and peft are not installed (ROTOSCALE_ORACLE_PYTHON)")
        return 77
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        c = Comparison(sys.argv[1], python, folder)
        base = folder / "base"
        c.run(python, "-c", SAVE, base, "", "", "{}")
        for name, (dtype, options) in SAVED.items():
            c.run(python, "-c", SAVE, base, folder / name, dtype, json.dumps(options))
            c.check(name, base, folder / name)
            c.check_training(name, base, folder / name)
        for name, targets in (("ours, fused", "qkv_proj,o_proj,gate_up_proj,down_proj"), ("ours, split", "k_proj,v_proj,down_proj")):
            run = folder / name
            c.run(c.program, "train", "--data", c.data, "--out", run, "--init", base, "--recipe", "fp32", "--steps", 20, "--batch", 4,
                  "--sequence", SEQUENCE, "--learning-rate", 0.02, "--lora-rank", 6, "--lora-alpha", 9, "--lora-targets", targets)
            c.check(name, base, next((run / "checkpoints").iterdir()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

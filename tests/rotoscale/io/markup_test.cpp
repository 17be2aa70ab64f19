// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What is left of HTML pages and manual pages, and that any bytes leave something or nothing, but never a crash.
#include "rotoscale/io/markup.hpp"

#include <doctest/doctest.h>

#include "rotoscale/io/roff.hpp"

namespace markup_test {

namespace io = rotoscale::io;
using io::strip_html;
using io::strip_roff;

TEST_CASE("HTML: tags, hidden parts, blanks and blocks") {
  CHECK(strip_html("") == "");
  CHECK(strip_html("<p>One  <b>two</b>\n three</p><p>four") == "One two three\n\nfour\n");
  CHECK(strip_html("<!DOCTYPE html><html><head><title>T</title></head><body>x</body></html>") == "x\n");
  CHECK(strip_html("a<script>if (a < b) { c(\"</p>\"); }</script>b") == "ab\n");
  CHECK(strip_html("a<STYLE>p { }</style >b<!-- no -- > <p> -->c") == "abc\n");
  CHECK(strip_html("<ul><li>one<li>two</ul>three") == "one\ntwo\n\nthree\n");
  CHECK(strip_html("<tr><td>1</td><td>2</td></tr><tr><td>3</td></tr>") == "1 2\n3\n");
  CHECK(strip_html("a<br/>b<hr>c") == "a\nb\n\nc\n");
  CHECK(strip_html("<pre>  x\n    y</pre> z  w") == "  x\n    y\n\nz w\n");
  CHECK(strip_html("<a href=\"x>y\" title='>'>link</a> it's") == "link it's\n");
  CHECK(strip_html("1 < 2 and 3 <4 >") == "1 < 2 and 3 <4 >\n");
}

TEST_CASE("HTML: character references") {
  CHECK(strip_html("&lt;p&gt; &amp;amp; &quot;&apos;&nbsp;&#65;&#x42;&#X43;") == "<p> &amp; \"' ABC\n");
  CHECK(strip_html("&eacute;&mdash;&#8212;&#x1F600;") == "\u00E9\u2014\u2014\U0001F600\n");
  CHECK(strip_html("&#0;&#xD800;&#x110000;&#99999999999;") == "\uFFFD\uFFFD\uFFFD\uFFFD\n");
  CHECK(strip_html("&#65x; &#x4g;") == "&#65x; &#x4g;\n");
  CHECK(strip_html("AT&T &unknown; &; &#; &#x; &#12 &") == "AT&T &unknown; &; &#; &#x; &#12 &\n");
}

TEST_CASE("HTML: what is cut off or misnested") {
  for (const char* cut : {"x<", "x<p", "x<a href=\"", "x<!--", "x<script>", "x<script></scr", "x</"}) {
    CAPTURE(cut);
    CHECK(strip_html(cut).starts_with("x"));
  }
  CHECK(strip_html("</p></pre></script>x</b>") == "x\n");
  CHECK(strip_html("<p don't>x</p>y") == "x\n\ny\n");
  CHECK(strip_html("<b><i>x</b></i>") == "x\n");
}

TEST_CASE("HTML is known by its beginning") {
  for (const char* page : {"<!DOCTYPE html>", "\n <!doctype HTML PUBLIC", "<html lang=en>", "\xEF\xBB\xBF<HTML>",
                           "<?xml version=\"1.0\"?>\n<!DOCTYPE x>\n<html xmlns=\"y\">"}) {
    CHECK(io::looks_like_html(page));
  }
  for (const char* other : {"", "<", "<p>x</p>", "<?xml version=\"1.0\"?><svg/>", "text with <html>"}) {
    CHECK_FALSE(io::looks_like_html(other));
  }
}

TEST_CASE("roff: macros, requests, fonts and characters") {
  CHECK(strip_roff(".TH LS 1\n.SH NAME\nls \\- list\n.SH \"SEE ALSO\"\n.BR cat (1),\n.I x y\n") ==
        "NAME\nls - list\n\nSEE ALSO\ncat(1),\nx y\n");
  CHECK(strip_roff("a \\fBbold\\fR \\f(CWx\\fP \\f[B]y\\fR \\s-1N\\s0 \\s12z\n") == "a bold x y N z\n");
  CHECK(strip_roff("\\(lqq\\(rq \\[em] \\(aq\\e\\\\ \\&.x \\*(Aq \\*(L\"s\\*(R\" \\(zz.\n") ==
        "\u201Cq\u201D \u2014 '\\\\ .x ' \u201Cs\u201D .\n");
  CHECK(strip_roff("x\\h'2m'y\\\" comment\n.\\\" comment\n'\\\" comment\n. \\\" x\n") == "xy\n");
  CHECK(strip_roff(".nf\nx\n.fi\n.sp 2\ny\n.if n .B z\n.ie t \\{\n.B q\n.\\}\n.el w\n") == "x\n\ny\n");
  CHECK(strip_roff(".de Vb\n.ft CW\ninside\n..\n.Vb 4\nx\n.Ve\n") == "x\n");
  CHECK(strip_roff(".de Q\nx .. y\nz\n..\nafter\n") == "after\n");
  CHECK(strip_roff(".TP\n.B \\-a\nall\n.IP \"two words\" 4\nz\r\n") == "-a\nall\n\ntwo words\nz\n");
}

TEST_CASE("roff: what is cut off") {
  for (const char* cut :
       {"x\\", "x\\f", "x\\(", "x\\[", "x\\s-", "x\\h'", "x\\*", "x\n.B \"", "x\n.B \\", "x\n.de a", "x\n."}) {
    CAPTURE(cut);
    CHECK(strip_roff(cut).starts_with("x"));
  }
  CHECK(strip_roff("") == "");
  CHECK(strip_roff(".\n'\n..\n") == "");
}

TEST_CASE("roff is known by its beginning") {
  for (const char* page : {".\\\" c", "'\\\" t", ".TH X 1", ".Dd today", ".so man1/x.1"})
    CHECK(io::looks_like_roff(page));
  for (const char* other : {"", ".", "...and so", ".gitignore", "'quoted'"}) CHECK_FALSE(io::looks_like_roff(other));
}

TEST_CASE("every byte at every place") {
  const std::string html = "<p class=\"a\">x &amp; <b>y</b><pre> z</pre><script>s</script><!-- c -->&#65;";
  const std::string roff = ".TH A 1\n.SH \"B C\"\nx \\fBy\\fR \\(em \\*(Aq\\h'1'\n.de Q\n..\n.if n \\{\\\n.\\}\n";
  for (const std::string* source : {&html, &roff}) {
    for (std::size_t i = 0; i < source->size(); ++i) {
      for (int byte = 0; byte < 256; ++byte) {
        std::string changed = *source;
        changed[i] = static_cast<char>(byte);
        REQUIRE(strip_html(changed).size() <= 4 * changed.size() + 4);
        REQUIRE(strip_roff(changed).size() <= 4 * changed.size() + 4);
      }
    }
  }
}

}  // namespace markup_test

"""The page of the difference of two reports: long tables are folded after their first rows."""

from __future__ import annotations

from habana_mp.results import ReportDiff


def test_a_long_table_is_folded():
    changes = tuple((f"op{number:02}", "float32", "bfloat16", 0, number + 1) for number in range(45))
    text = ReportDiff(changes, (("linear", 0.001, 0.002),)).to_html()
    shown, folded, rest = text.partition("<details><summary>5 more</summary>")
    assert folded
    assert "op39" in shown
    assert "op40" in rest.partition("</details>")[0]
    assert '<td class="number" data-title="after">45</td>' in rest
    assert '<th scope="col" class="number">before</th>' in shown
    assert '<td class="number" data-title="error before">0.001</td>' in rest.partition("</details>")[2]

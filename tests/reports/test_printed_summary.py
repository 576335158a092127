from roll.core.record.estimates import figures
from roll.reports.printed_summary import evaluation_lines


def model(name, **sets):
    def plain(outcomes, n):
        return {figure: estimate._asdict() for figure, estimate in figures(outcomes, n).items()}

    found = {each: {part: plain(*values) for part, values in parts.items()} for each, parts in sets.items()}
    return {"model": name, "step": 0, "folder": "f", "errors": 0, "sets": found}


def test_a_table_for_each_set_with_a_row_for_each_model_and_part():
    half, none = [[True, False]] * 4, [[False, False]] * 4
    evaluation = [
        model("pretrain", aime={"all": (none, 2)}, lakes={"all": ([[True]] * 10, 1), "tag/ice": ([[True]] * 5, 1)}),
        model("step-100", aime={"all": (half, 2)}, lakes={"all": ([], 1)}),
    ]
    assert list(evaluation_lines(evaluation)) == [
        "",
        "aime (with 95% confidence intervals)",
        "            prompts                 avg@2                pass@2",
        "pretrain          4  0.000 [0.000, 0.490]  0.000 [0.000, 0.490]",
        "step-100          4  0.500 [0.150, 0.850]  1.000 [0.510, 1.000]",
        "",
        "lakes (with 95% confidence intervals)",
        "                   prompts                 avg@1",
        "pretrain                10  1.000 [0.722, 1.000]",
        "pretrain  tag/ice        5  1.000 [0.566, 1.000]",
        "step-100                 0                     -",
    ]
    assert list(evaluation_lines([])) == []


def test_a_set_whose_environment_does_not_say_what_a_success_is_has_its_mean_scores():
    evaluation = [model("pretrain", cards={"all": ([], 1)}), model("step-100", cards={"all": ([], 1)})]
    for row, score in zip(evaluation, (-0.377, -0.05), strict=True):
        row["scores"] = {"cards": score}
    said = ["", "cards (mean score, for there is no accuracy)", "pretrain  -0.377", "step-100   -0.05"]
    assert list(evaluation_lines(evaluation)) == said

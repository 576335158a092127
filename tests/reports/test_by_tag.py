"""The table at the end of a run with several environments or domains."""

from roll.reports.by_tag import ByTag, as_table
from roll.reports.printed_summary import tag_lines


def of(*rows, known=()):
    tags = ByTag(known)
    for row in rows:
        tags.add(0, row)
    return tags.figures()


def test_episodes_add_up_and_scores_are_those_of_the_first_steps_and_of_the_last():
    rows = [{"env/a/episodes": 6.0, "env/a/score": float(i), "env/b/episodes": 2.0, "env/b/score": 1.0} for i in range(10)]
    rows[3]["env/b/success"] = 0.5
    assert of(*rows) == {
        "a": {"episodes": 60, "share": 0.75, "score": [2.0, 7.0]},
        "b": {"episodes": 20, "share": 0.25, "score": [1.0, 1.0], "success": [0.5, 0.5]},
    }


def test_a_validation_says_more_than_training():
    training = {"env/a/episodes": 3.0, "env/a/score": 9.0, "env/a/success": 0.9, "env/b/episodes": 1.0, "env/b/score": 9.0}
    first = {"val/env/a/episodes": 50.0, "val/env/a/score": 1.0, "val_correct/a/mean": 0.1, "val_correct/all/mean": 0.7}
    found = of(first, training, {"val/env/a/score": 3.0, "val_correct/a/mean": 0.3, "val/env/a/success": None})
    assert found == {
        "a": {"episodes": 3, "share": 0.75, "score": [1.0, 3.0], "success": [0.1, 0.3]},
        "b": {"episodes": 1, "share": 0.25, "score": [9.0, 9.0]},
    }


def test_domains_of_prompts_have_a_table_of_what_was_validated():
    found = of(
        {"val_correct/all/mean": 0.5, "val_correct/sums/mean": 0.25, "val_correct/code/mean": 0.75, "env/time/score_s": 3.0}
    )
    assert list(tag_lines(found)) == ["", "          success", "code  0.75 → 0.75", "sums  0.25 → 0.25"]


def test_one_tag_alone_has_no_table():
    assert of({"env/a/episodes": 3.0, "env/a/score": 9.0, "val_correct/all/mean": 1.0}) == {}
    assert list(as_table({})) == [] == list(tag_lines({}))


def test_a_tag_of_which_nothing_is_trained_is_there_all_the_same():
    assert of({"env/a/episodes": 3.0}, known=["a", "b"]) == {
        "a": {"episodes": 3, "share": 1.0},
        "b": {"episodes": 0, "share": 0.0},
    }
    assert of({"env/episodes": 3.0}, known=["a", "b"]) == {}, "nothing is told of any"


def test_a_tag_without_a_figure_has_a_dash():
    found = of({"env/long name/episodes": 3000.0, "env/long name/score": -1.5, "env/b/episodes": 1000.0})
    assert list(tag_lines(found)) == [
        "",
        "           episodes  share        score",
        "b             1,000  25.0%            –",
        "long name     3,000  75.0%  -1.5 → -1.5",
    ]

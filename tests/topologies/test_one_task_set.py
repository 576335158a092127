"""Task sets whose tasks have the same names stay apart, and each can be gone on with."""

from database_party import Tasks

from roll.topologies.one_task_set import OneTaskSet


def test_an_id_says_of_which_task_set_it_is_and_is_read_back_with_and_without():
    source, other = OneTaskSet(Tasks(), "5eed"), OneTaskSet(Tasks(), "0ther")
    served, theirs = [source.next() for _ in range(3)], [other.next() for _ in range(3)]
    assert [prompt.uid for prompt in served] == ["d@5eed/0/0", "d@5eed/0/1", "d@5eed/0/2"]
    assert not {prompt.uid for prompt in served} & {prompt.uid for prompt in theirs}
    cursor = source.cursor(outstanding=served[1:2])
    assert cursor == {"served": 3, "returned": ["d/0/1"]}, "the position is that of the tasks themselves"
    cursor["returned"] += ["d@5eed/0/0"]  # as rows of the database have it
    again = OneTaskSet(Tasks(), "5eed")
    again.restore(cursor)
    assert [again.next().uid for _ in range(3)] == ["d@5eed/0/1", "d@5eed/0/0", "d@5eed/0/3"]

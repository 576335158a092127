"""Numbers per token read as the list that they are, and travel as an array."""

import json
import pickle

import numpy as np
import pytest

from roll.data.per_token import log_probs, token_ids

IDS = [3, 2**31 - 1, 0, 7]
LOGPROBS = [-0.1, 0.0, -1e-300, -7.25]


@pytest.mark.parametrize(("made", "plain"), [(token_ids(IDS), IDS), (log_probs(LOGPROBS), LOGPROBS)])
def test_they_read_as_a_list(made, plain):
    assert made == plain and plain == made and made != plain[1:]
    assert list(made) == plain and len(made) == 4 and made[-1] == plain[-1] and type(made[0]) is type(plain[0])
    assert made[1:3] == plain[1:3] and made + plain == plain + plain and plain[:1] + made == plain[:1] + plain
    assert made == pytest.approx(plain) and made != tuple(plain)
    assert repr(made) == repr(plain) and json.dumps(list(made)) == json.dumps(plain)
    assert (np.asarray(made) == np.asarray(plain)).all()


@pytest.mark.parametrize(("made", "size"), [(token_ids(range(1000)), 4), (log_probs([-0.5] * 1000), 8)])
def test_they_travel_as_they_were_in_few_bytes(made, size):
    sent = pickle.dumps(made)
    assert pickle.loads(sent) == list(made) and len(sent) < 1000 * size + 200


def test_what_is_no_token_id_is_refused():
    with pytest.raises(OverflowError):
        token_ids([2**31])

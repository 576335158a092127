"""Sokoban that shows the whole conversation: what stands in it, and that the game is the same."""

from typing import Any

from roll.envs.registry import make_env

ROOM = {"dim_room": [5, 5], "max_steps": 4}


def test_the_conversation_grows_by_what_was_said_and_the_next_board():
    env: Any = make_env("sokoban_native_env", {**ROOM, "system_template": "Be brief.", "observation_suffix": "Your move:"})
    plain: Any = make_env("sokoban", ROOM)
    board, _ = plain.reset(3)
    messages, info = env.reset(3)
    assert messages == [
        {"role": "system", "content": f"Be brief.\n\n{plain.instructions}"},
        {"role": "user", "content": f"The room:\n{board}\n\nYour move:"},
    ]
    assert info == {}, "the conversation is the state, as in ROLL"
    move = plain.oracle_action()
    assert env.oracle_action() == move
    after, reward, *_, told = plain.step(move)
    shown, earned, terminated, truncated, info = env.step(move)
    assert (earned, terminated, truncated) == (reward, False, False)
    assert shown == [
        *messages, {"role": "assistant", "content": move}, {"role": "user", "content": f"The room:\n{after}\n\nYour move:"}
    ]  # fmt: skip
    assert info.items() <= told.items() and info["action_is_valid"]


def test_an_answer_without_a_move_is_told_and_a_new_episode_knows_nothing_of_it():
    env: Any = make_env("sokoban_native_env", {**ROOM, "format_penalty": -0.5})
    begun, _ = env.reset(1)
    shown, reward, *_, info = env.step("Hello!")
    assert (reward, info["action_is_valid"]) == (-0.5, False)
    assert shown[-1]["content"].startswith("Your last answer was no action.") and shown[-2]["content"] == "Hello!"
    assert "Your last answer" not in env.step("<answer>Up</answer>")[0][-1]["content"]
    env.step("Hello!")
    assert env.step("Hello!")[3], "max_steps is the game's, here 4"
    assert env.reset(1)[0] == begun and len(begun) == 2

"""Model folders that somebody with bad intentions, or bad luck, hands in. Each is made from a good one by one change."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
Change = Callable[[Path], None]
CASES: dict[str, tuple[Change, str]] = {}
"""Name -> the change, and what the complaint must say."""


def case(name: str, says: str) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        CASES[name] = (change, says)
        return change

    return register


def edit(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **changes}))


def config(name: str, says: str, **changes: Any) -> None:
    CASES[name] = (lambda folder: edit(folder, "config.json", **changes), says)


def text(name: str, says: str, file: str, content: str | bytes) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    CASES[name] = (lambda folder: void((folder / file).write_bytes(data)), says)


def index(name: str, says: str, target: Any) -> None:
    """An index all of whose tensors are in `target`; the weights lie elsewhere."""

    def change(folder: Path) -> None:
        names = list(load_file(folder / WEIGHTS))
        (folder / WEIGHTS).rename(folder / "model-00001.safetensors")
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, target)}))

    CASES[name] = (change, says)


def header(name: str, says: str, content: Any, data: bytes = b"", length: int | None = None) -> None:
    """A weight file with this header."""

    def change(folder: Path) -> None:
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)

    CASES[name] = (change, says)


def weights(name: str, says: str, keep: Callable[[str], bool] = lambda _: True, **replaced: torch.Tensor) -> None:
    """The tensors that `keep` accepts; those whose name ends with a key of `replaced` (dots as `__`) become its value."""

    def change(folder: Path) -> None:
        tensors = {key: value for key, value in load_file(folder / WEIGHTS).items() if keep(key)}
        for end, value in replaced.items():
            tensors |= {key: value.clone() for key in tensors if key.endswith(end.replace("__", "."))}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    CASES[name] = (change, says)


def template(name: str, says: str, source: str) -> None:
    CASES[name] = (lambda folder: void((folder / "chat_template.jinja").write_text(source)), says)


def fifo(file: str) -> None:
    def change(folder: Path) -> None:
        (folder / file).unlink(missing_ok=True)
        os.mkfifo(folder / file)

    CASES[f"fifo {file}"] = (change, "FIFO")


def void(_: object) -> None:
    return None


DEEP = "[" * 200_000 + "]" * 200_000
CODE = "import pathlib\npathlib.Path({marker!r}).write_text('ran')\nraise SystemExit('ran')\n"


def with_code(folder: Path) -> None:
    """A module that leaves a mark where it is run."""
    source = CODE.format(marker=str(folder / "ran"))
    for module in ("configuration_evil", "modeling_evil", "tokenization_evil"):
        (folder / f"{module}.py").write_text(source)


@case("code in the configuration", "code of the folder's own")
def code_in_config(folder: Path) -> None:
    with_code(folder)
    classes = {"AutoConfig": "configuration_evil.EvilConfig", "AutoModelForCausalLM": "modeling_evil.EvilModel"}
    edit(folder, "config.json", model_type="evil", architectures=["EvilModel"], auto_map=classes)


@case("code in the tokenizer", "")
def code_in_tokenizer(folder: Path) -> None:
    """transformers has a tokenizer for the architecture, and takes that."""
    with_code(folder)
    classes = {"AutoTokenizer": ["tokenization_evil.EvilTokenizer", None]}
    edit(folder, "tokenizer_config.json", tokenizer_class="EvilTokenizer", auto_map=classes)


@case("code under a known name of a model", "")
def code_beside_known(folder: Path) -> None:
    """transformers has the architecture itself, so this one loads; the folder's code must not run."""
    with_code(folder)
    edit(folder, "config.json", auto_map={"AutoModelForCausalLM": "modeling_evil.EvilModel"})


@case("pickle beside nothing", "no weights")
def only_pickle(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({}, folder / "pytorch_model.bin")


@case("pickle with the name of safetensors", "damaged")
def disguised_pickle(folder: Path) -> None:
    torch.save({"a": torch.zeros(1)}, folder / WEIGHTS)


@case("socket among the files", "")
def socket_file(folder: Path) -> None:
    """Not read under this name: nothing is wrong."""
    server = socket.socket(socket.AF_UNIX)
    place = os.getcwd()
    os.chdir(folder)  # the path of a socket is short
    try:
        server.bind("s")
    finally:
        os.chdir(place)
        server.close()


@case("weights are a folder", "")
def weights_folder(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()


@case("a link that points at itself", "")
def link_to_itself(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(WEIGHTS)


@case("a link to a device", "device")
def link_to_device(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")


@case("truncated weights", "damaged")
def truncated(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


@case("an adapter in the folder", "adapter_config.json")
def adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/etc", "peft_type": "LORA"}))


@case("no folder", "does not exist")
def nothing(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


for file in ("config.json", WEIGHTS, INDEX, "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
    fifo(file)
for file in ("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "vocab.json", "model-2.safetensors"):
    fifo(file)

index("index names a pickle", "x.bin", "x.bin")
index("index names an absolute path", "/etc/passwd", "/etc/passwd")
index("index names an absolute safetensors path", "not a *.safetensors file of its folder", "/tmp/model.safetensors")
index("index goes up", "../other.safetensors", "../other.safetensors")
index("index goes up inside", "a/../model-00001.safetensors", "a/../model-00001.safetensors")
index("index names a folder below", "sub/model.safetensors", "sub/model.safetensors")
index("index names a number", "5", 5)
index("index names nothing", "None", None)
index("index names a list", "[", ["model-00001.safetensors"])
index("index names a file that is not there", "not there", "model-00002.safetensors")
index("index names a NUL", "safetensors file", "a\x00.bin")
text("index is no JSON", "cannot be read", INDEX, "{")
text("index is a list", "not a mapping", INDEX, "[]")
text("index without a map", "weight_map", INDEX, "{}")
text("index with a list for a map", "weight_map", INDEX, '{"weight_map": []}')
text("index without end", "nested too deep", INDEX, DEEP)

header("empty header", "no tensor", {})
header("header with metadata alone", "no tensor", {"__metadata__": {"format": "pt"}})
header("header of no bytes", "damaged", b"")
header("header that is no JSON", "cannot be read", b"{" * 20)
header("header that is a list", "not a mapping", [])
header("header that is longer than the file", "damaged", {}, length=1 << 20)
header("header of an exabyte", "damaged", {}, length=1 << 60)
header("header of 2^64 - 1 bytes", "damaged", {}, length=(1 << 64) - 1)
header("header without end", "nested too deep", DEEP.encode())
header("header whose tensors are numbers", "does not list tensors", {"a": 1})
header("header without a shape", "does not list tensors", {"a": {"dtype": "F32", "data_offsets": [0, 4]}})
header("header with a negative shape", "no type, shape and place", {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})
header("header with half a number", "no type, shape and place", {"a": {"dtype": "F32", "shape": [0.5], "data_offsets": [0, 2]}})
header("header with a true shape", "no type, shape and place", {"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}})
header("header that points outside", "does not lie inside", {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})
header(
    "header with a huge shape",
    "does not lie inside",
    {"a": {"dtype": "F32", "shape": [1 << 62], "data_offsets": [0, 4]}},
    b"1234",
)
header(
    "header with offsets reversed", "does not lie inside", {"a": {"dtype": "F32", "shape": [0], "data_offsets": [4, 0]}}, b"1234"
)
header("header with a wrong size", "does not lie inside", {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234")
header("header with an unknown type", "", {"a": {"dtype": "X99", "shape": [1], "data_offsets": [0, 4]}}, b"1234")
header("header with other tensors", "", {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"1234")
header(
    "header with half a character", "surrogate", b'{"\\ud800": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', b"1234"
)

weights("one layer is missing", "not complete: model.layers.1", lambda name: "layers.1" not in name)
weights("one tensor is missing", "up_proj.weight is missing", lambda name: name != "model.layers.0.mlp.up_proj.weight")
weights("all norms are missing", "not complete", lambda name: "norm" not in name)
weights("the embedding is missing", "not complete", lambda name: "embed" not in name)
weights("a matrix is too small", "config.json makes it", mlp__up_proj__weight=torch.zeros(3, 3))
weights("a bias is too long", "config.json makes it", q_proj__bias=torch.zeros(99))
weights("a norm is a scalar", "config.json makes it", model__norm__weight=torch.zeros(()))

config("more layers than tensors", "asks for 1,000,000,000 layers", num_hidden_layers=10**9, layer_types=None)
config("one layer more", "not complete", num_hidden_layers=3, layer_types=None)
config("no layer", "", num_hidden_layers=-1)
config("layers in words", "", num_hidden_layers="two")
config("no heads", "", num_attention_heads=0)
config("a vocabulary without end", "", vocab_size=10**18)
config("a negative vocabulary", "", vocab_size=-5)
config("a hidden size of 10^12", "", hidden_size=10**12)
config("an unknown architecture", "", model_type="nonesuch")
config("an architecture that is no language model", "not a causal language model", model_type="vit")
config("a type that is a list", "", model_type=["qwen2"])
config("weights under another name", "transformers_weights", transformers_weights="../../x.safetensors")
config("an activation that is code", "", hidden_act="__import__('os').system('true')")
config("a rope that is unknown", "", rope_parameters={"rope_type": "nonesuch", "rope_theta": 1.0})
text("configuration is no JSON", "cannot be read", "config.json", "{")
text("configuration is a list", "not a mapping", "config.json", "[]")
text("configuration is empty", "cannot be read", "config.json", "")
text("configuration is binary", "cannot be read", "config.json", b"\xff\xfe\x00\x01\x80")
text("configuration without end", "nested too deep", "config.json", DEEP)
text("configuration with half a character", "surrogate", "config.json", '{"model_type": "\\ud800"}')
text("configuration of 70 MB", "more than", "config.json", b" " * (70 << 20))
text("configuration with a huge number", "cannot be read", "config.json", '{"vocab_size": ' + "9" * 5000 + "}")

text("tokenizer is no JSON", "tokenizer", "tokenizer.json", "{")
text("tokenizer is a list", "tokenizer", "tokenizer.json", "[]")
text("tokenizer without end", "tokenizer", "tokenizer.json", DEEP)
text("tokenizer configuration without end", "nested too deep", "tokenizer_config.json", DEEP)
text("tokenizer configuration is a list", "not a mapping", "tokenizer_config.json", "[]")
text("generation configuration without end", "nested too deep", "generation_config.json", DEEP)
text("added tokens are a list", "not a mapping", "added_tokens.json", "[]")

RANGE = "{% for x in range(99999) %}"
END = "{% endfor %}"
template("template with three loops", "takes more than", f"{RANGE * 3}{END * 3}")
template("template that counts in one call", "", "{{ range(99999) | map('string') | list | length }}" * 2)
template("template with a tower of powers", "takes more than", "{{ 9 ** (9 ** (messages|length * 3)) }}")
template("template that writes without end", "more than", f"{RANGE}{{{{ 'x' * 9999 }}}}{END}")
template("template of two megabytes", "characters, more than", "{# " + "x" * (2 << 20) + " #}")

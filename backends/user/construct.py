"""Constructors of user layers: the names of their parameters, and the argument for each name.

`CONSTRUCTOR` is the published list (docs/layers.md, "Your class as it is"). `Maker` makes a layer for a
case: each parameter of the constructor gets the argument that the list has for its name.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from attention_conformance.backends.binder import (
    BY_PLACE,
    Binder,
    Parameter,
    UnreadableSignature,
    required,
    signature_of,
)
from attention_conformance.backends.user.names import OPERAND_NAMES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

T = TypeVar("T")


@dataclass(frozen=True)
class Named(Parameter[Inputs]):
    """A parameter of a constructor, with all its names.

    - `text`: its argument in words, for docs/layers.md
    - `joined_heads(inputs)`: its argument for code that counts all heads together; None if no code does
    """

    text: str = ""
    joined_heads: Callable[[Inputs], Any] | None = None

    def argument(self, joined_heads: bool) -> Callable[[Inputs], Any]:
        """The function from inputs to the argument; `joined_heads`: the code counts all heads
        together."""
        return (joined_heads and self.joined_heads) or self.value


def named(
    names: str,
    text: str,
    value: Callable[[Inputs], Any],
    *features: str,
    joined_heads: Callable[[Inputs], Any] | None = None,
) -> Named:
    """A row of the list; `names` are divided by spaces, and the suite's own name is the first."""
    name, *others = names.split()
    return Named(name, features, value, names=tuple(others), text=text, joined_heads=joined_heads)


def option(name: str) -> Callable[[Inputs], Any]:
    """A function that returns the value of a case's option; None if the operator lacks the option."""
    return lambda inputs: inputs.case.option(name)


def all_heads(inputs: Inputs) -> int:
    """H D: the size of the queries of all heads. Of additive attention the number of units."""
    return inputs.sizes.H * inputs.sizes.D


def rngs() -> Any:
    """New random generators for a module of Flax. Generators count their uses, so modules share none."""
    return importlib.import_module("flax.nnx").Rngs(0)


def filled(value: Any) -> Any:
    """The argument of a constructor: `value`, but new generators if it is the function `rngs`."""
    return value() if value is rngs else value


def width(name: str) -> Callable[[Inputs], int]:
    """A function that returns the width of an operand; H D for operators that are no layers."""
    return lambda inputs: (
        getattr(inputs.widths, name) if inputs.operator.is_layer else all_heads(inputs)
    )


def longest(inputs: Inputs) -> int:
    """The larger one of Lq and Lk."""
    return max(inputs.sizes.Lq, inputs.sizes.Lk)


def hidden_width(inputs: Inputs) -> int | None:
    """The hidden width of an encoder's feed-forward network; None for other layers."""
    return None if inputs.case.option("pre") is None else inputs.letters["o"]


OF_DTYPES = ("dtype", "param_dtype")
"""Names of parameters for a dtype."""

UNITS = (
    "units hidden_size hidden_dim num_hiddens num_units n_units attention_dim attn_dim attention_size "
    "inner_dim out_dim output_dim d_out dim_out output_size out_features qkv_features"
)

CONSTRUCTOR: tuple[Named, ...] = (
    named(
        "query_width d_model model_dim dim_model embed_dim embedding_dim emb_dim embed_size emb_size "
        "n_embd dim dim_in d_in in_dim input_dim input_size in_features query_size query_dim q_dim "
        "dim_q decoder_dim n_state features model_size",
        "Eq, the width of the queries",
        width("query"), "cross",
    ),
    named("key_width kdim k_dim encoder_dim context_dim", "Ek", width("key"), "key-width"),
    named("value_width vdim v_dim", "Ev", width("value"), "value-width"),
    named("output_width", "Eo", width("output"), "output-width"),
    named(
        "heads num_heads n_heads n_head num_head nhead nheads head_num num_attention_heads "
        "attention_heads h",
        "H", lambda inputs: inputs.sizes.H,
    ),
    named(
        "key_heads num_kv_heads n_kv_heads n_kv_head kv_heads num_key_value_heads",
        "Hkv", lambda inputs: inputs.sizes.Hkv, "grouped-heads",
    ),
    named(
        "key_size d_k dk d_key key_dim head_dim head_size d_head dim_head attention_head_size "
        "size_per_head",
        "D; H D if the layers have this size",
        lambda inputs: inputs.sizes.D, "head-width", joined_heads=all_heads,
    ),
    named(
        "value_size d_v dv d_value value_dim v_head_dim",
        "Dv; H Dv if the layers have this size",
        lambda inputs: inputs.sizes.Dv, "value-size",
        joined_heads=lambda inputs: inputs.sizes.H * inputs.sizes.Dv,
    ),
    named(UNITS, "H D; additive: U", all_heads),
    named(
        "bias qkv_bias use_bias add_bias attention_bias", "whether the case has biases",
        lambda inputs: "query_bias" in inputs.parameters, "no-projection-bias",
    ),
    named("rate", "the rate of dropout", lambda inputs: inputs.rate, "dropout"),
    named(
        "dropout dropout_p p_dropout dropout_rate drop_rate dropout_prob attn_dropout "
        "attention_dropout attn_pdrop resid_dropout resid_pdrop proj_drop attn_drop",
        "0.0", lambda inputs: 0.0,
    ),
    named(
        "block_size max_len max_length max_seq_len max_seq_length seq_len seq_length "
        "sequence_length context_length context_size context_window n_ctx n_positions "
        "max_position_embeddings",
        "the larger one of Lq and Lk", longest,
    ),
    named("batch_first", "True", lambda inputs: True),
    named("decode", "False", lambda inputs: False),
    named("hidden_width", "F, of an encoder", hidden_width),
    named("norm_first", "whether an encoder's norms stand first", option("pre"), "pre-norm"),
    named("activation", '"relu" or "gelu", of an encoder', option("activation"), "gelu"),
    named("epsilon", "what a norm adds to the variance", option("epsilon")),
    named("qk_norm", "whether queries and keys are normalised", option("qk_norm"), "qk-norm"),
    named(" ".join(OF_DTYPES), "the name of the dtype", lambda inputs: inputs.dtype.long_name),
    named("rngs", "the random numbers of Flax, `nnx.Rngs(0)`", lambda inputs: rngs),
)  # fmt: skip
"""The parameters of constructors, by their names."""

CONFIGS = ("config", "cfg", "conf", "args", "hparams")
"""A parameter of such a name gets an object whose attributes have the names of `CONSTRUCTOR`."""

WIDTHS = {"key_size": "key_width", "value_size": "value_width", "key_dim": "key_width",
          "value_dim": "value_width"}  # fmt: skip
"""The rows of names that mean widths if the constructor also has a name of `OF_QUERIES`."""

OF_QUERIES = {"query_size", "query_dim"}
"""The names of the width of queries in constructors in which the names of `WIDTHS` mean widths."""

ROWS: Mapping[str, Named] = {name: row for row in CONSTRUCTOR for name in row.every_name}
"""The row of each name."""


def row_of(name: str, names: Collection[str] = ()) -> Named | None:
    """The row of the parameter `name` of a constructor whose parameters are `names`; None if unknown."""
    if OF_QUERIES & {*names}:
        name = WIDTHS.get(name, name)
    return ROWS.get(name) or ROWS.get(name.lower())


def factory_table(
    names: Collection[str], joined_heads: bool = False
) -> tuple[Parameter[Inputs], ...]:
    """The parameters of a constructor with these names, and the suite's own names of the other rows."""
    rows = {name: row_of(name, names) for name in names}
    used = {row: [name for name in names if rows[name] is row] for row in CONSTRUCTOR}
    unused = {row: [row.name] for row in CONSTRUCTOR if row.name not in rows}
    named_rows = ((row, name) for row in CONSTRUCTOR for name in used[row] or unused.get(row, []))
    return tuple(
        replace(row.under(name), value=row.argument(joined_heads)) for row, name in named_rows
    )


class Settings:
    """The object for a parameter of `CONFIGS`: attributes or items by the names of `CONSTRUCTOR`.

    `read` are the names that were read. A name outside of the list raises AttributeError or KeyError.
    """

    def __init__(self, inputs: Inputs, joined_heads: bool = False) -> None:
        self._inputs, self._joined_heads = inputs, joined_heads
        self.read = dict[str, None]()

    def __getattr__(self, name: str) -> Any:
        row = row_of(name)
        if row is None:
            raise AttributeError(
                f"the suite gives a config no {name!r}: expected names of the list in docs/layers.md; "
                "name it so, or make the layer in a function with parameters of these names"
            )
        self.read[name] = None
        return filled(row.argument(self._joined_heads)(self._inputs))

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError as error:
            raise KeyError(str(error)) from error


@dataclass(frozen=True)
class Maker:
    """Makes a user's layers.

    - `binder`: the parameters of the constructor, or the read names of its config
    - `config`: the name of the parameter that is a config; "" if there is none
    - `joined_heads`: the constructor counts all heads together: D and Dv are given as H D and H Dv
    """

    factory: Callable[..., Any]
    binder: Binder[Inputs]
    config: str = ""
    joined_heads: bool = False

    @classmethod
    def of(
        cls,
        factory: Callable[..., Any],
        name: str,
        read: Iterable[str] = (),
        joined_heads: bool = False,
    ) -> Maker:
        """The maker of a class or function; `read` are the names that its config reads. Raises
        TypeError."""
        names = names_of(factory)
        configs = [name for name in names if name in CONFIGS]
        if {p.name for p in parameters_of(factory) if required(p)} & OPERAND_OF.keys():
            raise TypeError(
                f"{name}({', '.join(names)}) takes arrays, expected a class or function that makes a "
                "layer: make its layers in the constructor of a class, from sizes that it takes, whose "
                "call takes these arrays (docs/layers.md)"
            )
        table = factory_table([*names, *read], joined_heads)
        if is_module(factory):  # torch's are made, and then moved to the dtype
            table = tuple(row for row in table if row.name not in {*OF_DTYPES} & {*names})
        config: tuple[Parameter[Inputs], ...] = tuple(map(Parameter, configs))
        binder = Binder.of(factory, name, (*table, *config), (), "factory")
        if configs:
            binder = replace(binder, table=table, taken=binder.taken - {*configs} | {*read})
        return cls(factory, binder, configs[0] if configs else "", joined_heads)

    @property
    def tells_widths(self) -> bool:
        """True if a parameter of the constructor is the width of the query, or the size of all heads."""
        return any(map(self.binder.name_of, ("query_width", "units")))

    def settings(self, inputs: Inputs) -> Settings:
        """The config for inputs."""
        return Settings(inputs, self.joined_heads)

    def __call__(self, inputs: Inputs, settings: Settings | None = None) -> Any:
        """A new layer for the inputs' sizes; `settings` is its config, by default a new one."""
        if not self.config:
            return self.factory(**{n: filled(v) for n, v in self.binder.bind(inputs).items()})
        names = names_of(self.factory)
        keywords = {n: filled(v) for n, v in self.binder.bind(inputs).items() if n in names}
        return self.factory(**keywords, **{self.config: settings or self.settings(inputs)})


def is_module(factory: Callable[..., Any]) -> bool:
    """True for a class of torch's modules."""
    return any(base.__module__.startswith("torch.nn") for base in getattr(factory, "__mro__", ()))


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a callable; none if Python cannot read its signature."""
    try:
        return [*signature_of(function).parameters.values()]
    except UnreadableSignature:
        return []


def names_of(function: Callable[..., Any]) -> list[str]:
    """The names of a callable's parameters, without `*args` and `**kwargs`."""
    anything = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [p.name for p in parameters_of(function) if p.kind not in anything]


ALONE = ("x", "X", "inputs", "input", "hidden_states", "tokens")
"""Further names of the array of a layer that takes only one array."""

OPERAND_OF = dict.fromkeys(ALONE, "query") | {
    name: word
    for word, names in OPERAND_NAMES.items()
    for name in (*names, word[0].upper(), f"inputs_{word[0]}")
}
"""The operand (query, key or value) of each name of a layer's array."""


def arrays_of(function: Callable[..., Any], table: Iterable[Parameter[T]]) -> list[str] | None:
    """The first parameters of a layer's call that have names of `OPERAND_OF`. None if there are none, or
    if another parameter without a default follows that is not in `table`."""
    row_names = {name for row in table for name in row.every_name}
    arrays: list[str] = []
    for parameter in parameters_of(function):
        if parameter.kind not in BY_PLACE:
            break
        if parameter.name in OPERAND_OF and len(arrays) < len(OPERANDS):
            arrays.append(parameter.name)
        elif required(parameter) and parameter.name not in row_names:
            return None
        else:
            break
    return arrays or None


def order_of(names: Iterable[str]) -> list[str]:
    """The operand (query, key or value) that each array of a layer's call is, by the arrays' names or, if
    these do not tell, in this order."""
    named = [OPERAND_OF.get(name, "") for name in names]
    standard = [*OPERANDS][: len(named)]
    return named if sorted(named) == sorted(standard) else standard

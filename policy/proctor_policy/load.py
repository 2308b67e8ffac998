"""A rules folder into a rule set, wholly or not at all."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import cedarpy

from proctor_policy import annotations, entities, facts, lints, masks, policy, schema, tooltypes
from proctor_policy.entities import Entities, EntitiesInvalid
from proctor_policy.facts import FactSet
from proctor_policy.lexer import Fragment, Unreadable, split
from proctor_policy.policy import Policy
from proctor_policy.problem import Problem, RulesInvalid
from proctor_policy.ruleset import RuleSet
from proctor_policy.tooltypes import Tools

__all__ = ["RulesInvalid", "load", "rebuild"]

ENTITIES_FILE: Final = "entities.json"
FACTS_FILE: Final = "facts.toml"
MASKS_FILE: Final = "redact.toml"
SCHEMA_FILE: Final = "schema.cedarschema"
TOOLS_FOLDER: Final = "tools"
TESTS_FOLDER: Final = "tests"

_TOP_FILES: Final = frozenset({ENTITIES_FILE, FACTS_FILE, MASKS_FILE, SCHEMA_FILE})

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of one file below the rules folder."""


def load(folder: Path, published: Mapping[str, Any] | None = None) -> RuleSet:
    """Read every `.cedar` file below `folder`, its entities and facts, into a rule set.

    Files are taken in the order of their paths; hidden files and folders are left out, as is
    `tests`. Links are followed. `tools/*.json` are what MCP servers list: rules about those tools
    are held to their arguments. `published`: tool -> JSON Schema of its arguments, as agents say;
    what does not fit that is a warning, since an agent must not decide whether rules load.

    Raises:
        RulesInvalid: with every problem found, by file and line.
    """
    problems: list[Problem] = []
    files = _read_all(folder, problems)
    return _built(files, str(folder), problems, published or {})


def rebuild(files: Mapping[str, str], name: str) -> RuleSet:
    """Make a rule set anew from the files it was made of (`RuleSet.files`).

    `name` stands for the folder in problems. Raises `RulesInvalid` as `load` does.
    """
    return _built(dict(files), name, [], {})


def _built(
    files: dict[str, str], name: str, problems: list[Problem], published: Mapping[str, Any]
) -> RuleSet:
    policies = [
        each
        for path, text in files.items()
        if path.endswith(".cedar")
        for each in _policies(path, f"{name}/{path}", text, problems)
    ]
    problems += _duplicate_ids(policies)
    store = entities.read("[]")
    if ENTITIES_FILE in files:
        try:
            store = entities.read(files[ENTITIES_FILE])
        except EntitiesInvalid as error:
            problems.append(Problem(f"{name}/{ENTITIES_FILE}", None, str(error)))
    known = FactSet()
    if FACTS_FILE in files:
        known = facts.read(f"{name}/{FACTS_FILE}", files[FACTS_FILE], problems)
    masked = masks.Masks()
    if MASKS_FILE in files:
        masked = masks.read(f"{name}/{MASKS_FILE}", files[MASKS_FILE], problems)
    tools, more = _tools(files, name, problems)
    if not policies and not problems:
        problems.append(Problem(name, None, "no policies in it", "put a .cedar file there"))
    problems += lints.problems_of(policies, frozenset(fact.name for fact in known.facts))
    problems += schema.problems_of(policies, tools, more)
    problems += _unknown(policies, store, tools, published)
    problems += _unknown_in_facts(f"{name}/{FACTS_FILE}", known, _tools_of(store, tools, published))
    if not more:
        for wrong in lints.entity_types(store.ancestors, schema.BASE_TYPES):
            problems.append(Problem(f"{name}/{ENTITIES_FILE}", None, wrong))
    if problems:
        raise RulesInvalid(tuple(problems))
    labels = frozenset(fact.label for fact in known.facts if fact.label is not None)
    said = tooltypes.gather(
        {
            tool: tooltypes.type_of_schema(given, given)
            for tool, given in published.items()
            if tool not in tools.inputs
        }
    )
    warnings = [
        *schema.problems_of(policies, said, more),
        *lints.warnings_of(policies, labels.union(*store.labels.values())),
        *schema.warnings_of(policies, tools, more),
    ]
    return RuleSet(
        files=files,
        # Letting go of thousands of tokens takes a while: it is done here, off the event loop,
        # and not when a later set replaces this one.
        policies=[replace(each, tokens=(), conditions=()) for each in policies],
        entities=store,
        facts=known,
        masks=masked,
        # INVARIANT: a verdict follows from the files, which the hash names. What agents publish
        # is for checking rules, and never turns a value into another type.
        tools=tools,
        warnings=tuple(warnings),
    )


def _unknown(
    policies: list[Policy], store: Entities, tools: Tools, published: Mapping[str, Any]
) -> Iterator[Problem]:
    # Agents say what they have, not what there is: only files are meant to be complete.
    complete = bool(tools.inputs)
    known = _tools_of(store, tools, published)
    yield from lints.unknown_tools(policies, known, complete=complete)


def _unknown_in_facts(file: str, facts: FactSet, tools: frozenset[str]) -> Iterator[Problem]:
    for fact in facts.facts:
        for tool in sorted((fact.tools or frozenset()) - tools):
            near = get_close_matches(tool, tools, n=1, cutoff=0.8)
            if near:
                hint = f"did you mean {near[0]!r}?"
                yield Problem(file, None, f"fact {fact.name!r}: unknown tool {tool!r}", hint)


def _tools_of(store: Entities, tools: Tools, published: Mapping[str, Any]) -> frozenset[str]:
    declared = {uid[1] for uid in store.ancestors if uid[0] in ("Tool", "Action")}
    return frozenset(declared.union(tools.inputs, published, (n.tool for n in tools.notes)))


def schema_of(rules: RuleSet) -> str:
    """Return the schema that a rule set was held to, in Cedar's own syntax."""
    return schema.text_of(rules.tools, rules.files.get(SCHEMA_FILE, ""))


def _tools(files: Mapping[str, str], name: str, problems: list[Problem]) -> tuple[Tools, str]:
    types: dict[str, tooltypes.Type] = {}
    for path, text in files.items():
        if not path.startswith(f"{TOOLS_FOLDER}/"):
            continue
        for tool, known in tooltypes.read(f"{name}/{path}", text, problems).items():
            if tool in types:
                problems.append(Problem(f"{name}/{path}", None, f"tool {tool!r} is known already"))
            types[tool] = known
    tools = tooltypes.gather(types)
    more = files.get(SCHEMA_FILE, "")
    if more:
        wrong = schema.parse_problem(schema.text_of(tools, more))
        if wrong is not None:
            problems.append(Problem(f"{name}/{SCHEMA_FILE}", None, wrong))
            more = ""
    return tools, more


def _policies(path: str, file: str, text: str, problems: list[Problem]) -> Iterator[Policy]:
    """Yield the sound policies of one file; what is wrong goes to `problems`."""
    try:
        for fragment in split(text):
            try:
                each = policy.read(path, file, _accepted(fragment))
            except Unreadable as error:
                problems.append(Problem(file, error.line, error.message, error.hint))
                continue
            found = list(annotations.check(each))
            problems += found
            if not found:
                yield replace(each, gate=annotations.gate_of(each))
    except Unreadable as error:
        problems.append(Problem(file, error.line, error.message, error.hint))


def _accepted(fragment: Fragment) -> Fragment:
    """Return a policy once Cedar has parsed it, all by itself."""
    try:
        parsed = cedarpy.PolicySet.from_str(fragment.text, release_gil=True)
    except ValueError as error:
        raise Unreadable(fragment.line, " ".join(str(error).split())) from None
    if parsed.templates():
        raise Unreadable(fragment.line, "a template is never linked here", "name the entity")
    return fragment


def _duplicate_ids(policies: list[Policy]) -> Iterator[Problem]:
    first: dict[str, Policy] = {}
    for each in policies:
        other = first.setdefault(each.id, each)
        if other is not each:
            yield Problem(
                each.file,
                each.line,
                f"the id {each.id!r} is taken",
                f"it is the policy in {other.file}:{other.line}",
            )


def _read_all(folder: Path, problems: list[Problem]) -> dict[str, str]:
    if not folder.is_dir():
        missing = "not a folder" if folder.exists() else "no such folder"
        problems.append(Problem(str(folder), None, missing, "name the folder of your rules"))
        return {}
    texts = {}
    for path in sorted(_paths(folder)):
        file = folder / path
        try:
            if file.stat().st_size > FILE_BYTES_MAX:
                raise ValueError(f"larger than {FILE_BYTES_MAX} bytes")
            texts[path] = file.read_bytes().decode()
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            problems.append(Problem(str(file), line, "not UTF-8", "save the file as UTF-8"))
        except (OSError, ValueError) as error:
            problems.append(Problem(str(file), None, f"it cannot be read: {error}"))
    return texts


def _paths(folder: Path) -> Iterator[str]:
    """Yield the rule files below a folder, relative to it."""
    seen: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:  # a link that leads back up
            folders.clear()
            continue
        seen.add(real)
        at_top = Path(parent) == folder
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and not (at_top and name == TESTS_FOLDER)
        )
        for name in names:
            if name.startswith("."):
                continue
            path = os.path.relpath(os.path.join(parent, name), folder)
            is_tool = path.startswith(f"{TOOLS_FOLDER}{os.sep}") and name.endswith(".json")
            if name.endswith(".cedar") or is_tool or (at_top and name in _TOP_FILES):
                yield path

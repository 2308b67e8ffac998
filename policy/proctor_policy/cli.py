"""`proctor policy ...`: check, test, explain, fmt and diff a rules folder.

Exit status: 0 when all is well, 1 when the rules or their tests are not, 2 for wrong usage.
"""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from proctor_policy import cases, compare, explain, fmt, junit, rebuno
from proctor_policy.call import Call, Session
from proctor_policy.cases import CasesInvalid
from proctor_policy.lexer import Unreadable
from proctor_policy.load import load, schema_of
from proctor_policy.problem import Problem, RulesInvalid
from proctor_policy.ruleset import RuleSet

policy_app = typer.Typer(no_args_is_help=True, help="Check, test and explain a rules folder.")

Folder = Annotated[Path, typer.Argument(help="The rules folder.")]

_out = Console(highlight=False, soft_wrap=True)
_err = Console(highlight=False, soft_wrap=True, stderr=True)


@policy_app.command()
def check(folder: Folder = Path("rules")) -> None:
    """Load the rules and say what is wrong, by file and line."""
    rules = _loaded(folder)
    for problem in rules.warnings:
        _out.print(f"[yellow]warning[/] {problem}")
    files = sum(path.endswith(".cedar") for path in rules.files)
    _out.print(f"[green]ok[/]  {len(rules.policies)} policies in {files} files, {rules.hash[:12]}")


@policy_app.command("test")
def run_tests(
    folder: Folder = Path("rules"),
    coverage: Annotated[
        bool, typer.Option("--coverage", help="List the rules that no test made decide.")
    ] = False,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", help="Also write the results as JUnit XML.")
    ] = None,
) -> None:
    """Run the tests in FOLDER/tests."""
    rules = _loaded(folder)
    try:
        listed = cases.load_cases(folder)
    except CasesInvalid as invalid:
        _fail(invalid.problems)
    began = time.perf_counter()
    results = cases.run(rules, listed)
    seconds = time.perf_counter() - began
    by_file: dict[str, str] = {}
    for result in results:
        mark = "[red]F[/]" if result.problems else "[green].[/]"
        by_file[result.case.file] = by_file.get(result.case.file, "") + mark
    for file, marks in by_file.items():
        _out.print(f"{file} {marks}")
    for result in results:
        for problem in result.problems:
            _out.print(f"[red]FAILED[/] {problem}", markup=True)
    if coverage:
        unseen = cases.uncovered(rules, results)
        total = len(rules.policies)
        percent = 100 * (total - len(unseen)) // total
        _out.print(f"\n{total - len(unseen)} of {total} rules decided something ({percent} %)")
        for rule_id in unseen:
            _out.print(f"  never: {rule_id}")
    if junit_file is not None:
        junit_file.write_text(junit.document(results), encoding="utf-8")
    failed = sum(bool(result.problems) for result in results)
    passed = len(results) - failed
    colour = "red" if failed else "green"
    _out.print(f"\n[{colour}]{passed} passed, {failed} failed[/] in {seconds:.2f} s")
    if failed:
        raise typer.Exit(1)


@policy_app.command("explain")
def explain_call(
    folder: Folder = Path("rules"),
    agent: Annotated[str, typer.Option(help="Who calls.")] = "agent",
    tool: Annotated[str | None, typer.Option(help="The tool that is called.")] = None,
    model: Annotated[str | None, typer.Option(help="Or the model.")] = None,
    local: Annotated[str | None, typer.Option(help="Or the local step.")] = None,
    args: Annotated[str, typer.Option(help="The arguments, as JSON.")] = "{}",
    user: Annotated[str | None, typer.Option(help="On whose behalf.")] = None,
    idempotency: Annotated[str, typer.Option()] = "safe_to_retry",
    session: Annotated[
        str, typer.Option(help='What the run has done, as JSON: {"labels": ["untrusted"]}')
    ] = "{}",
    as_json: Annotated[bool, typer.Option("--json", help="For a program to read.")] = False,
) -> None:
    """Say what the rules make of one call, and what would lift a refusal.

    Without --tool, --model or --local the call is read from standard input as a JSON object
    with the same names.
    """
    rules = _loaded(folder)
    given: dict[str, Any] = {
        "agent": agent,
        "tool": tool,
        "model": model,
        "local": local,
        "args": args,
        "user": user,
        "idempotency": idempotency,
        "session": session,
    }
    if tool is None and model is None and local is None:
        given |= _from_stdin(given)
    explanation = rules.explain(_call(given))
    if as_json:
        _out.print_json(json.dumps(explain.as_json(explanation)))
        return
    for line in explain.as_lines(explanation):
        _out.print(line, markup=False)


@policy_app.command("schema")
def show_schema(
    folder: Folder = Path("rules"),
    left_open: Annotated[
        bool, typer.Option("--open", help="List the arguments that could not be typed.")
    ] = False,
) -> None:
    """Print the Cedar schema that the rules are held to, derived from FOLDER/tools/*.json."""
    rules = _loaded(folder)
    if left_open:
        for note in rules.tools.notes:
            _out.print(str(note), markup=False)
        return
    _out.print(schema_of(rules), markup=False)


@policy_app.command("import")
def import_bundle(
    bundle: Annotated[Path, typer.Argument(help="A Rebuno policy bundle, YAML.")],
    folder: Annotated[Path, typer.Argument(help="Where the rules go; a new folder.")],
    agent: Annotated[str | None, typer.Option(help="The agent that the bundle is for.")] = None,
) -> None:
    """Turn a Rebuno policy bundle into Cedar rules with the same verdicts."""
    if folder.exists() and any(folder.iterdir()):
        _fail((Problem(str(folder), None, "there is something already", "name a new folder"),))
    try:
        files = rebuno.imported(bundle.read_text(encoding="utf-8"), agent=agent)
    except rebuno.BundleInvalid as invalid:
        _fail(tuple(Problem(str(bundle), None, each) for each in invalid.problems))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        laid_out = fmt.formatted(text) if name.endswith(".cedar") else text
        (folder / name).write_text(laid_out, encoding="utf-8")
        _out.print(f"wrote  {folder / name}")
    _loaded(folder)


@policy_app.command("fmt")
def format_files(
    folder: Folder = Path("rules"),
    only_check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail when a file would change.")
    ] = False,
) -> None:
    """Bring the Cedar files of FOLDER into one layout."""
    changed = []
    problems = []
    for path in sorted(folder.glob("**/*.cedar")):
        text = path.read_text(encoding="utf-8")
        try:
            laid_out = fmt.formatted(text)
        except Unreadable as error:
            problems.append(Problem(str(path), error.line, error.message, error.hint))
            continue
        except ValueError as error:
            problems.append(Problem(str(path), None, " ".join(str(error).split())))
            continue
        if laid_out != text:
            changed.append(path)
            if not only_check:
                path.write_text(laid_out, encoding="utf-8")
    if problems:
        _fail(tuple(problems))
    for path in changed:
        _out.print(f"{'would change' if only_check else 'changed'}  {path}")
    if changed and only_check:
        raise typer.Exit(1)


@policy_app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="The rules folder as it was.")],
    after: Annotated[Path, typer.Argument(help="The rules folder as it would be.")],
    as_json: Annotated[bool, typer.Option("--json", help="For a program to read.")] = False,
) -> None:
    """Show which verdicts change between two rules folders, on the calls of both's tests.

    Fails when a call is allowed that was not.
    """
    old, new = _loaded(before), _loaded(after)
    try:
        calls = [*cases.load_cases(before), *cases.load_cases(after)]
    except CasesInvalid as invalid:
        _fail(invalid.problems)
    found = compare.changes(old, new, calls)
    if as_json:
        _out.print_json(
            json.dumps(
                [
                    {
                        "where": change.where,
                        "target": change.target,
                        "opens": change.opens,
                        "before": [change.before.decision, change.before.reason],
                        "after": [change.after.decision, change.after.reason],
                    }
                    for change in found
                ]
            )
        )
    else:
        for change in found:
            word = "[red]OPENS  [/]" if change.opens else "changes"
            _out.print(
                f"{word} {change.target}: {change.before.decision} "
                f"({', '.join(change.before.rule_ids)}) -> {change.after.decision} "
                f"({', '.join(change.after.rule_ids)})  {change.where}"
            )
        _out.print(f"{len(found)} verdicts change")
    if any(change.opens for change in found):
        raise typer.Exit(1)


def _loaded(folder: Path) -> RuleSet:
    try:
        return load(folder)
    except RulesInvalid as invalid:
        _fail(invalid.problems)


def _fail(problems: tuple[Problem, ...]) -> NoReturn:
    for problem in problems:
        _err.print(f"[red]error[/] {problem}")
    raise typer.Exit(1)


def _from_stdin(given: dict[str, Any]) -> dict[str, Any]:
    try:
        read = json.load(sys.stdin)
    except ValueError as error:
        raise typer.BadParameter(f"standard input is not JSON: {error}") from None
    if not isinstance(read, dict) or read.keys() - given.keys():
        raise typer.BadParameter(f"standard input must be an object of: {', '.join(given)}")
    return {
        key: json.dumps(value) if key in ("args", "session") else value
        for key, value in read.items()
    }


def _call(given: dict[str, Any]) -> Call:
    kinds = {"tool": "tool_call", "model": "llm_call", "local": "local"}
    named = [key for key in kinds if given[key] is not None]
    if len(named) != 1:
        raise typer.BadParameter("name one of --tool, --model and --local")
    return Call(
        principal=str(given["agent"]),
        kind=kinds[named[0]],
        target=str(given[named[0]]),
        args_json=str(given["args"]),
        idempotency=str(given["idempotency"]),
        session=_session(str(given["session"])),
        now_micros=time.time_ns() // 1000,
        user=given["user"],
    )


def _session(text: str) -> Session:
    try:
        fields = json.loads(text)
        for key in {"tools", "labels"} & fields.keys():
            fields[key] = frozenset(fields[key])
        return Session(**fields)
    except (TypeError, ValueError, AttributeError) as error:
        raise typer.BadParameter(f"session: {error}") from None

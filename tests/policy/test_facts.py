"""Facts, and the evasions that they must not fall for."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.conftest import Write, a_call

from proctor_policy import facts, inspect_value
from proctor_policy.facts import FactSet
from proctor_policy.load import load
from proctor_policy.problem import Problem, RulesInvalid
from proctor_policy.ruleset import RuleSet


def fact_set(text: str) -> FactSet:
    problems: list[Problem] = []
    found = facts.read("facts.toml", text, problems)
    assert problems == []
    return found


def holds(text: str, value: Any) -> bool:
    found = fact_set(f'[f]\nargument = "x"\n{text}')
    return bool(found.of("any", {"x": value}))


INSIDE_HOSTS = 'host_in = ["example.com", "*.example.org"]'
OUTSIDE_HOSTS = 'host_not_in = ["example.com", "*.example.org"]'

TRUSTED_URLS = [
    "https://example.com",
    "https://EXAMPLE.com:8443/a?b#c",
    "http://example.com./",
    "wss://a.b.example.org/x@y",
    "HTTPS://example.com/%2e%2e/",
    "https://example.com/?to=ada@example.com",
]
DOUBTFUL_URLS = [
    "https://evil.test",
    "https://example.com.evil.test",
    "https://evilexample.com",
    "https://example.org",
    "https://example.com@evil.test/",
    "https://user:pw@example.com/",
    "https://evil.test\\@example.com/",
    "https:\\\\example.com",
    "https:/example.com",
    "https:example.com",
    "//example.com",
    "example.com",
    "javascript://example.com/%0aalert(1)",
    "file:///etc/passwd",
    "https://exаmple.com",  # noqa: RUF001  # a Cyrillic a
    "https://example\u3002com",
    "https://example.com\u200b",
    "https://ｅxample.com",  # noqa: RUF001  # fullwidth
    "https://example.com\n.evil.test",
    "https://example.com:80.evil.test",
    "https://example%2ecom",
    "https://[::ffff:127.0.0.1]/",
    "https://0x7f.1/",
    "https://2130706433/",
    "https://127.1",
    "https://0177.0.0.1",
    "https://0xexample.com",
    "https://example.com?@evil.test/",
    "https://example.com#@evil.test/",
    "https://example.com..",
    "https://example.com:",
    "https://\u212aexample.com",
    "https://evil.test\thttps://example.com",
    " https://example.com",
    "https://example.com ",
    "",
]


@pytest.mark.parametrize("url", TRUSTED_URLS)
def test_a_url_of_a_named_host_is_vouched_for(url: str) -> None:
    assert holds(INSIDE_HOSTS, url)
    assert not holds(OUTSIDE_HOSTS, url)


@pytest.mark.parametrize("url", DOUBTFUL_URLS, ids=ascii)
def test_any_other_url_is_warned_of(url: str) -> None:
    assert not holds(INSIDE_HOSTS, url)
    assert holds(OUTSIDE_HOSTS, url)


INSIDE_PATHS = 'path_under = ["/srv/data", "notes"]'
OUTSIDE_PATHS = 'path_not_under = ["/srv/data", "notes"]'


@pytest.mark.parametrize(
    "path",
    [
        "/srv/data",
        "/srv/data/a",
        "/srv//data/./a/../b",
        "///srv/data/x",
        "/srv/data/.env",
        "/srv/data/a b.txt",
        "/srv/data/été",
        "notes/a",
        "./notes/a",
    ],
)
def test_a_path_under_a_folder_is_vouched_for(path: str) -> None:
    assert holds(INSIDE_PATHS, path)
    assert not holds(OUTSIDE_PATHS, path)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/srv/data/../../etc/passwd",
        "/srv/database",
        "notes/../../etc",
        "/srv/data/%2e%2e/x",
        "/srv/data/..%2fx",
        "/srv/data\\..\\..\\etc",
        "~/srv/data",
        "$HOME/x",
        "/srv/data/\0",
        "/srv/data/{x,../../etc/passwd}",
        "/srv/data/`id`",
        "/srv/data/.. /.. /etc/passwd",
        "/srv/data/.../x",
        " /srv/data/x",
        "/srv/data/x ",
        "//srv/data/x",
        "file:///srv/data/x",
        "C:/srv/data",
        "/srv/data/\u202e",
        "/srv/data/．．/x",  # noqa: RUF001  # fullwidth dots
        "",
        "/SRV/data/x",
    ],
    ids=ascii,
)
def test_any_other_path_is_warned_of(path: str) -> None:
    assert not holds(INSIDE_PATHS, path)
    assert holds(OUTSIDE_PATHS, path)


INSIDE_MAIL = 'email_domain_in = ["example.com"]'
OUTSIDE_MAIL = 'email_domain_not_in = ["example.com"]'


@pytest.mark.parametrize("mail", ["ada@example.com", "a.b+c@EXAMPLE.com"])
def test_mail_to_a_named_domain_is_vouched_for(mail: str) -> None:
    assert holds(INSIDE_MAIL, mail)
    assert not holds(OUTSIDE_MAIL, mail)


@pytest.mark.parametrize(
    "mail",
    [
        "ada@evil.test",
        "ada@example.com.evil.test",
        "ada@sub.example.com",
        "a@evil.test,b@example.com",
        "a@evil.test@example.com",
        "a@example.com@evil.test",
        '"a@evil.test"@example.com',
        "Ada <ada@example.com>",
        "ada@example.com (x@evil.test)",
        "ada%evil.test@example.com",
        "ada!evil@example.com",
        "@example.com",
        "ada@",
        "ada",
        "ada@[127.0.0.1]",
        "ada@example.com\nbcc: eve@evil.test",
        "ada@example.com\u200b",
        "ada@example.com,",
        "ada @example.com",
        "mailto:ada@example.com",
        "ada@example.com@",
        "ada@exаmple.com",  # noqa: RUF001  # a Cyrillic a
    ],
    ids=ascii,
)
def test_any_other_mail_is_warned_of(mail: str) -> None:
    assert not holds(INSIDE_MAIL, mail)
    assert holds(OUTSIDE_MAIL, mail)


def test_a_domain_is_not_spelt_with_what_lower_case_makes_plain() -> None:
    inside = 'email_domain_in = ["book.com"]'

    assert holds(inside, "ada@BOOK.com")
    assert not holds(inside, "ada@boo\u212a.com")  # the Kelvin sign: its lower case is k


def test_the_working_folder_is_a_folder_and_what_is_above_is_none() -> None:
    inside = 'path_under = ["."]'

    assert holds(inside, ["a", "./a/b", "a/../b", "."])
    assert not any(holds(inside, path) for path in ("..", "../a", "a/../../b", "/a"))


READS = 'sql_only = ["select"]'
WRITES = 'sql_other_than = ["select"]'


@pytest.mark.parametrize(
    "sql",
    [
        "select 1",
        "SELECT 'delete; drop' FROM t -- delete\n WHERE a = \"update\"",
        "/* drop */ select 1;",
        "(select 1) union (select 2);;",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "select 'it''s; drop' from t",
        "select a - -1 from t",
        "select [a b], `c` from [dbo].[t] -- end\r\n",
        "select a[1], b::text, c / 2 from t where d ->> 'e' like '%f%'",
    ],
)
def test_sql_that_only_reads_is_vouched_for(sql: str) -> None:
    assert holds(READS, sql)
    assert not holds(WRITES, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "delete from t",
        "DeLeTe from t",
        "select 1; drop table t",
        "/* select */ drop table t",
        "-- select\ndrop table t",
        "WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d",
        "EXPLAIN ANALYZE DELETE FROM t",
        "((delete from t))",
        "select * into outfile '/tmp/x' from t",
        "select 1 for update",
        "/*! delete from t */ select 1",
        "/*!50000 delete */ select 1",
        "select 1 # \n; delete from t",
        "select 'a\\'; delete from t; -- '",
        "select $$a$$; delete from t",
        "select $$'$$; delete from t; --'",
        "--' \n delete from t --'",
        "select 1 --'\n; delete from t --'",
        "/* /* */ ' */ delete from t -- '",
        "select q'[']'; delete from t; --'",
        "select E'\\''; delete from t --'",
        "select 'never closed",
        "select 1 -- x\r; delete from t",
        "select 1 -- x\r ' \n; delete from t --'",
        "select 1 --\x0b' \n; delete from t --'",
        "/*M! delete from t */ select 1",
        "/*m!50000 delete from t */ select 1",
        "select [ '] ; delete from t --']",
        "select [a -- ]\n; delete from t",
        "select [a /*] ; delete from t --*/",
        "select ''' ' ''' ; delete from t --'",
        'select """ " """ ; delete from t --"',
        "select 1 /*/ /*/; delete from t */",
        "select 1 /* /* */; delete from t /* */ */",
        "select 1 */ ; delete from t",
        "select x1'a'",
        "select 1 // ' \n ; delete from t --'",
        "select 1 {' } ; delete from t --'",
        "[dbo].[wipe]",
        "select 1 delete from t",
        "select 1 backup database d to disk = 'x'",
        "select 1 dbcc shrinkdatabase(d)",
        "explain (analyze) delete from t",
        "select 1;\n@evil",
        "select 1;\n.shell rm",
        "select 1;\n!rm",
        "select \0; delete from t",
        "select 'M\u00fcller'",
        "call wipe()",
        "pragma writable_schema = 1",
        "attach 'x' as y",
        "",
        "-- nothing\n",
        "ｄｅｌｅｔｅ from t",  # noqa: RUF001  # fullwidth
        "'select'",
    ],
    ids=ascii,
)
def test_sql_that_may_do_more_is_warned_of(sql: str) -> None:
    assert not holds(READS, sql)
    assert holds(WRITES, sql)


@pytest.mark.parametrize(
    ("sql", "verbs"),
    [
        ("insert into t values (1)", {"insert"}),
        ("UPDATE t SET a = 1; select 1", {"update", "select"}),
        ("replace into t values (1)", {"replace"}),
        ("insert into t values (1) on conflict do update set a = 1", {"insert", "do", "update"}),
        ("insert into t select * into outfile 'x' from u", {"insert", "into"}),
        ("insert into t select 1 set a = 1", {"insert", "set"}),
        ("table t", {"select"}),
        ("show tables", {"show"}),
    ],
)
def test_the_verbs_of_sql_are_what_its_author_would_list(sql: str, verbs: set[str]) -> None:
    assert inspect_value.sql_verbs(sql) == verbs


# fmt: off
SQL_PARTS = st.lists(st.sampled_from([
    "'", '"', "`", "[", "]", "(", ")", ";", "-- ", "--", "/*", "*/", "/*!", "''", '""', ",", "a",
    "1", " ", "\n", "\r", "\t", "\x0b", "\0", "\\", "#", "/", "-", "*", "$$", "E'", "x'", "{", "é",
]), max_size=4).map("".join)
# fmt: on
CHANGING = {
    sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_DROP_TABLE,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_INSERT,
}


@settings(max_examples=200)
@given(SQL_PARTS, SQL_PARTS, SQL_PARTS)
def test_what_is_said_to_read_changes_nothing_in_a_database(a: str, b: str, c: str) -> None:
    sql = f"select 1 {a} {b}; delete from t {c}"
    if inspect_value.sql_verbs(sql) != {"select"}:
        return
    changed = []
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create table t (a)")

        def watch(action: int, *_: str | None) -> int:
            changed.extend([action] if action in CHANGING else [])
            return sqlite3.SQLITE_OK

        connection.set_authorizer(watch)
        with suppress(sqlite3.Error, ValueError):
            connection.executescript(sql)

    assert changed == []


@pytest.mark.parametrize(
    ("value", "warned", "vouched"),
    [
        ("https://example.com", False, True),
        (["https://example.com"], False, True),
        (["https://example.com", "https://evil.test"], True, False),
        ([["https://evil.test"]], True, False),
        ([], False, False),
        (None, False, False),
        (5, True, False),
        ({"url": "https://example.com"}, True, False),
        (["https://example.com", 5], True, False),
        (True, True, False),
        ([None, "https://example.com"], True, False),
        ("https://example.com,https://evil.test", True, False),
        ({}, True, False),
    ],
    ids=repr,
)
def test_a_value_of_another_form_is_doubt(value: Any, warned: bool, vouched: bool) -> None:
    assert holds(OUTSIDE_HOSTS, value) is warned
    assert holds(INSIDE_HOSTS, value) is vouched


def test_an_argument_can_lie_deep_and_in_lists() -> None:
    found = fact_set('[f]\nargument = "mails.to"\nemail_domain_not_in = ["example.com"]')
    inside = {"mails": [{"to": "a@example.com"}, {"to": ["b@example.com"]}]}
    outside = {"mails": [{"to": "a@example.com"}, {"to": ["b@evil.test"]}]}
    strange = {"mails": ["a@example.com"]}

    assert not found.of("any", inside)
    assert found.of("any", outside)
    assert found.of("any", strange)
    assert not found.of("any", {"other": 1})


def test_patterns_search_or_cover_the_whole_text() -> None:
    assert holds('matches = "(?i)password"', "my PassWord is")
    assert not holds('matches = "(?i)password"', "nothing")
    assert holds('matches_all = "[a-z]+"', ["abc", "def"])
    assert not holds('matches_all = "[a-z]+"', ["abc", "d3f"])
    assert not holds('matches_all = "[a-z]+"', "abc\n")
    assert holds('matches = "x"', "\ud800")
    assert not holds('matches_all = ".*"', "\ud800")


@pytest.mark.parametrize(
    "text",
    ["pass\u200bword", "\uff50assword", "PASS\u00adWORD", "pass\ufe0fword", "\u202epassword"],
    ids=ascii,
)
def test_a_pattern_finds_what_a_reader_would_see(text: str) -> None:
    assert holds('matches = "(?i)password"', text)


def test_a_text_too_long_to_be_read_like_a_reader_is_doubt() -> None:
    long = "é" * inspect_value.TEXT_CHARACTERS_MAX

    assert not holds('matches = "x"', long)
    assert holds('matches = "x"', long + "é")
    assert not holds('matches = "x"', "e" * (inspect_value.TEXT_CHARACTERS_MAX + 1))


def test_a_pattern_takes_linear_time() -> None:
    found = fact_set('[f]\nargument = "x"\nmatches = "(a|a)*$|(a+)+b"')
    began = time.perf_counter()
    found.of("any", {"x": "a" * 200_000 + "c"})

    assert time.perf_counter() - began < 1  # with backtracking: longer than anybody waits


@pytest.mark.parametrize("deep", ["[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900])
def test_no_depth_of_an_argument_raises(write: Write, deep: str) -> None:
    rules = load(
        write(
            '@id("all") permit (principal, action, resource);',
            **{"facts.toml": '[f]\nargument = "x.a.a"\nmatches = "a"\n'},
        )
    )

    assert rules.decide(a_call("t", f'{{"x":{deep}}}')).decision == "deny"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("https://a.b"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=8,
)
IN_OR_OUT = """
[in]
argument = "x.y"
host_in = ["a.b"]
[out]
argument = "x.y"
host_not_in = ["a.b"]
"""


@given(json_values)
def test_a_value_is_vouched_for_or_warned_of_or_not_there(value: Any) -> None:
    names = [fact.name for fact in fact_set(IN_OR_OUT).of("any", {"x": value})]

    assert names in (["in"], ["out"], [])
    assert bool(names) == bool(list(facts._values({"x": value}, ("x", "y"))))


@given(st.text(max_size=40) | st.text(alphabet="'\"`;-/*! selctdropu\\$#\n", max_size=40))
def test_no_text_does_worse_than_being_doubtful(text: str) -> None:
    for understand in (
        inspect_value.url_host,
        inspect_value.email_domain,
        inspect_value.normal_path,
        inspect_value.sql_verbs,
        inspect_value.as_seen,
    ):
        understand(text)


@pytest.mark.parametrize(
    "part", ["''", "'", "/*", "-- ", "(", "a.", "%2", "../", "@", "[", "\t", "'a'", "1", "[a]"]
)
def test_no_text_takes_long(part: str) -> None:
    text = part * (inspect_value.TEXT_CHARACTERS_MAX // len(part))
    began = time.perf_counter()
    for understand in (
        inspect_value.url_host,
        inspect_value.email_domain,
        inspect_value.normal_path,
        inspect_value.sql_verbs,
    ):
        for begin in ("", "https://", "a@", "/", "select "):
            understand((begin + text)[: inspect_value.TEXT_CHARACTERS_MAX])

    assert time.perf_counter() - began < 5  # twenty texts, each a few milliseconds


def test_rules_see_facts_and_facts_leave_labels(write: Write) -> None:
    rules = load(
        write(
            '@id("all") permit (principal, action, resource);',
            '@id("no") forbid (principal, action, resource)'
            ' when { context.facts.contains("external") };',
            **{
                "facts.toml": '[external]\ntools = ["fetch"]\nargument = "url"\n'
                'host_not_in = ["example.com"]\nlabel = "untrusted"\n'
            },
        )
    )
    outside = a_call("fetch", '{"url":"https://evil.test"}')
    inside = a_call("fetch", '{"url":"https://example.com"}')
    other = a_call("other", '{"url":"https://evil.test"}')

    assert rules.decide(outside).rule_ids == ("no",)
    assert rules.decide(outside).labels == ("untrusted",)
    assert (rules.decide(inside).decision, rules.decide(inside).labels) == ("allow", ())
    assert rules.decide(other).decision == "allow"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("[f", "facts.toml:1: not TOML", id="toml"),
        pytest.param(
            '[a]\nargument="x"\nmatches="a"\n[f]\nargumnet = "x"\nmatches = "a"',
            "facts.toml:4: fact 'f': unknown key 'argumnet'; did you mean 'argument'?",
            id="misspelt",
        ),
        pytest.param('[f]\nargument = "x"', "exactly one thing", id="nothing"),
        pytest.param(
            '[f]\nargument = "x"\nmatches = "a"\nhost_in = ["a.b"]', "exactly one", id="two"
        ),
        pytest.param('[f]\nmatches = "a"', "argument must name one", id="no argument"),
        pytest.param(
            '[f]\nargument = "to[]"\nmatches = "a"', "leave the brackets out", id="brackets"
        ),
        pytest.param(
            '[f]\nargument = "x"\npath_under = ["../a"]', "not a plain path", id="path above"
        ),
        pytest.param(
            '[ab]\nargument = "x"\nmatches = "a"\n[ "a" ]\nargument = 5',
            "facts.toml:4: fact 'a'",
            id="a name inside another",
        ),
        pytest.param('[f]\nargument = "x"\nmatches = "(a"', "the pattern '(a'", id="pattern"),
        pytest.param(
            '[f]\nargument = "x"\nmatches = "(a)\\\\1"', "no back-references", id="back-reference"
        ),
        pytest.param('[f]\nargument = "x"\nhost_in = []', "not empty", id="no hosts"),
        pytest.param('[f]\nargument = "x"\nhost_in = ["a b"]', "not a host name", id="host"),
        pytest.param('[f]\nargument = "x"\nmatches = "a"\nlabel = 5', "label must be", id="label"),
        pytest.param("f = 5", "expected a table", id="no table"),
    ],
)
def test_a_fact_that_is_wrong_is_reported_with_its_line(
    write: Write, text: str, expected: str
) -> None:
    folder = write('@id("a") permit (principal, action, resource);', **{"facts.toml": text})

    with pytest.raises(RulesInvalid) as caught:
        load(folder)

    assert expected in str(caught.value.problems[0])


def test_facts_count_as_rule_files(rules: Callable[..., RuleSet]) -> None:
    permit = '@id("a") permit (principal, action, resource);'
    without = rules(permit)
    with_facts = rules(permit, **{"facts.toml": '[f]\nargument = "x"\nmatches = "a"\n'})

    assert without.hash != with_facts.hash

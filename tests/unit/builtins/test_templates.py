from typing import Any

import pytest

from core.templates import NothingThereError, TemplateError, parse_template


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("plain { text }", "plain { text }"),
        ("{{sample.output_text}}", '{"n": [1, {"m": 2}]}'),
        ("{{ sample.output_json.n[1].m }}", "2"),
        ("{{sample.output_json.n.0}}", "1"),
        ("{{sample.output_json.n}}", '[1, {"m": 2}]'),
        ("{{item.answer}} / {{ item.answer }}", "é / é"),
        ("{{item.with-dash}}", "x"),
        ("{{item.flag}}", "true"),
    ],
)
def test_templates_are_filled(template: str, wanted: str) -> None:
    columns = {"answer": "é", "with-dash": "x", "flag": True}
    assert parse_template(template).render('{"n": [1, {"m": 2}]}', columns) == wanted


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{answer}}", "`{{answer}}` is not a variable: write `{{item.COLUMN}}` or `{{sample.output_text}}`"),
        ("{{ item }}", "`{{ item }}` is not a variable"),
        ("{{item.a b}}", "`{{item.a b}}` is not a variable"),
        ("{{sample.output_txt}}", "did you mean `sample.output_text`"),
        ("{{sample.choices[0]}}", "there are `sample.output_text` and `sample.output_json`"),
        ("{{sample.output_text.x}}", "write `sample.output_json`"),
        ("x" * 40_000, "is longer than"),
    ],
)
def test_a_variable_that_there_is_not_is_refused_by_name(template: str, message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        parse_template(template)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("template", "columns", "is_null"),
    [
        ("{{item.a}}", {}, False),
        ("{{item.a}}", {"a": None}, True),
        ("{{item.a[1]}}", {"a": [1]}, False),
        ("{{item.a.b}}", {"a": "text"}, False),
        ("{{item.a.99999999999999999999}}", {"a": [1]}, False),
        ("{{sample.output_json.a}}", {}, False),
    ],
)
def test_what_is_not_there_is_told_from_null(template: str, columns: dict[str, Any], is_null: bool) -> None:
    with pytest.raises(NothingThereError) as caught:
        parse_template(template).render("not JSON", columns)
    assert caught.value.is_null is is_null


def test_columns_are_known_before_there_is_a_row() -> None:
    assert parse_template("{{item.a.b}} {{sample.output_text}} {{item.c}} {{item.a}}").columns == ("a", "c")

// Errors and limits of chat templates; what they render is compared in text_golden.cpp.
#include <chrono>
#include <iostream>
#include <random>

#include "chat_template.h"
#include "text_check.h"

namespace {

const std::vector<assay::ChatMessage> kMessages = {{"user", "Hello"}, {"assistant", "Hi"}};

std::string render(const std::string& source, const std::vector<assay::ChatMessage>& messages = kMessages) {
    return assay::ChatTemplate::parse(source)->render(messages, true, "<s>", "</s>");
}

std::string repeat(const std::string& text, int count) {
    std::string result;
    for (int i = 0; i < count; ++i) result += text;
    return result;
}

void what_is_not_supported_is_named_with_its_line() {
    CHECK_ERROR(assay::ChatTemplate::parse("a\n\n{{ x | sort }}"), "line 3: the filter 'sort' is not supported");
    CHECK_ERROR(assay::ChatTemplate::parse("{% macro f() %}{% endmacro %}"), "line 1: the statement 'macro'");
    for (const std::string name : {"include", "extends", "block", "call", "filter", "with", "raw", "import", "do"}) {
        CHECK_ERROR(assay::ChatTemplate::parse("\n{% " + name + " x %}"), "line 2: the statement '" + name + "'");
    }
    CHECK_ERROR(assay::ChatTemplate::parse("{{ x is sameas 1 }}"), "the test 'sameas' is not supported");
    CHECK_ERROR(assay::ChatTemplate::parse("{{ 2 ** 3 }}"), "'**' is not supported");
    CHECK_ERROR(assay::ChatTemplate::parse("{{ f(*x) }}"), "unpacked arguments");
    CHECK_ERROR(assay::ChatTemplate::parse("{% for a in b recursive %}{% endfor %}"), "recursive");
    CHECK_ERROR(assay::ChatTemplate::parse("{% set x | upper %}{% endset %}"), "'set' block");
    CHECK_ERROR(assay::ChatTemplate::parse("{{ 0x10 }}"), "the number '0x");
    CHECK_ERROR(assay::ChatTemplate::parse("{{ 99999999999999999999 }}"), "the number '99999999999999999999'");
    CHECK_ERROR(assay::ChatTemplate::parse("{{ '\\N{DASH}' }}"), "the escape '\\N'");
    CHECK_ERROR(assay::ChatTemplate::parse("{{ '\\ud800' }}"), "names no character");
    CHECK_ERROR(render("{{ strftime_now('%Y') }}"), "line 1: 'strftime_now' is not supported");
    CHECK_EQUAL(render("{{ strftime_now is defined }}"), "False");
    CHECK_ERROR(render("{{ 'x'.encode() }}"), "the method 'encode' of a string is not supported");
    CHECK_ERROR(render("{{ messages[0].pop('role') }}"), "the method 'pop' of a dictionary is not supported");
    CHECK_ERROR(render("{{ messages }}"), "writing a list as text is not supported");
    CHECK_ERROR(render("{{ messages[0].__class__ }}"), "'__class__' is not supported");
    CHECK_ERROR(render("{{ loop.index }}"), "'loop' is undefined");
    CHECK_ERROR(render("{% for m in messages %}{{ loop.cycle('a') }}{% endfor %}"), "not supported");
    CHECK_ERROR(render("{{ '\u03A3' | lower }}"), "sigma");
    CHECK_ERROR(render("{{ '\u00E9' | title }}"), "beyond ASCII");
}

void malformed_templates_are_errors() {
    for (const std::string source :
         {"{{", "{%", "{#", "{{ 'a", "{{ 'a\\", "{% if %}x{% endif %}", "{% if 1 %}", "{% for x in y %}", "{% endfor %}",
          "{% else %}", "{% if 1 %}{% endfor %}", "{{ }}", "{{ 1 + }}", "{{ (1 }}", "{{ 1) }}", "{{ [1 }}", "{{ {1} }}",
          "{{ a b }}", "{{ a. }}", "{{ a[ }}", "{{ a[] }}", "{{ a | }}", "{{ a is }}", "{{ f(a=1, 2) }}", "{% set %}",
          "{% set 1 = 2 %}", "{% set true = 2 %}", "{% set loop = 2 %}", "{% set x %}", "{% for 1 in x %}{% endfor %}",
          "{% break %}", "{% continue %}", "{% %}", "{{ $ }}", "{{ \xFF }}", "{{ 1 if }}", "{{ not }}", "{{ a[1:2:3:4] }}"}) {
        CHECK_ERROR(assay::ChatTemplate::parse(source), "line 1: ");
    }
}

void raised_texts_come_through_as_they_are() {
    CHECK_EQUAL(check::error_of([] { render("\n{{ raise_exception('No system role') }}"); }), "No system role");
}

void deep_nesting_is_an_error_and_no_crash() {
    for (const std::string open : {"(", "[", "{'a':", "not ", "-", "a[", "f(", "a if ", "1 if 1 else ", "[1,", "a|trim(", "x is eq("}) {
        CHECK_ERROR(assay::ChatTemplate::parse("{{ " + repeat(open, 20000)), "line 1: ");
    }
    CHECK_ERROR(assay::ChatTemplate::parse(repeat("{% if 1 %}", 20000)), "nested more than 64 deep");
    CHECK_ERROR(assay::ChatTemplate::parse(repeat("{% for a in b %}", 10000)), "nested more than 64 deep");
    for (const std::string link : {" + 1", "|trim", ".a", "[0]", "()", " and 1", " or 1", " if 1", "*1", " is defined"}) {
        CHECK_ERROR(assay::ChatTemplate::parse("{{ x" + repeat(link, 20000) + " }}"), "line 1: ");
    }
    CHECK_EQUAL(render("{{ 1" + repeat(" + 1", 150) + " }}"), "151");
    CHECK_EQUAL(render("{{ ''" + repeat(" ~ 'a'", 5000) + " }}"), repeat("a", 5000));
    CHECK_EQUAL(render(repeat("{% if 1 %}", 40) + "x" + repeat("{% endif %}", 40)), "x");
    CHECK_EQUAL(render("{% if 0 %}" + repeat("{% elif 0 %}", 5000) + "{% else %}x{% endif %}"), "x");
    CHECK_ERROR(assay::ChatTemplate::parse(repeat("x", 300000)), "longer than 256 KiB");
    CHECK_ERROR(render("{% set n = namespace(v=[]) %}{% for i in range(1000) %}{% set n.v = [n.v] %}{% endfor %}"),
                "nested more than 32 deep");
    CHECK_ERROR(render("{% set n = namespace() %}{% set n.self = n %}"), "a namespace inside another value");
    CHECK_ERROR(render("{% set n = namespace() %}{% set n.v = [n] %}"), "a namespace inside another value");
}

void time_and_memory_are_bounded() {
    const auto start = std::chrono::steady_clock::now();
    const std::string loops = "{% for a in range(99999) %}{% for b in range(99999) %}";
    const std::string ends = "{% endfor %}{% endfor %}";
    CHECK_ERROR(render(loops + ends), "too many steps");
    CHECK_ERROR(render(loops + "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" + ends), "the template ");
    CHECK_ERROR(render("{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}"),
                "too much memory");
    CHECK_ERROR(render("{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}"),
                "too much memory");
    CHECK_ERROR(render("{% set n = namespace(v=[1]) %}{% for i in range(99) %}{% set n.v = n.v + n.v %}{% endfor %}"),
                "too ");
    CHECK_ERROR(render("{{ 'x' * 999999999999 }}"), "too ");
    CHECK_ERROR(render("{{ ('x' * 9999).replace('x', 'x' * 99999) }}"), "too much memory");
    CHECK_ERROR(render("{{ ('x' * 9999).replace('', 'x' * 99999) }}"), "too much memory");
    CHECK_ERROR(render("{{ (['x' * 99999] * 1) }}"), "not supported");
    CHECK_ERROR(render("{{ range(999999999) }}"), "longer than 100000");
    CHECK_ERROR(render("{% set s = 'a' * 1000000 %}{% for i in range(9999) %}{{ 'b' in s }}{% endfor %}"), "too many steps");
    CHECK_ERROR(render("{{ ('a' * 500000 ~ 'b') in ('a' * 1000000) }}"), "too many steps");
    CHECK_ERROR(render("{% set n = namespace(v='x' * 100) %}{% for i in range(30) %}{% set n.v = [n.v, n.v, n.v] %}"
                       "{% endfor %}{{ n.v | tojson }}"),
                "too ");
    CHECK_ERROR(render("{% set n = namespace(v=1) %}{% for i in range(30) %}{% set n.v = [n.v, n.v, n.v] %}{% endfor %}"
                       "{% set m = namespace(v=1) %}{% for i in range(30) %}{% set m.v = [m.v, m.v, m.v] %}{% endfor %}"
                       "{{ n.v == m.v }}"),
                "too many steps");
    CHECK_ERROR(render("{% for a in range(99999) %}{% set x %}" + repeat("y", 1000) + "{% endset %}{{ x }}{% endfor %}"),
                "too ");
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    CHECK(seconds.count() < 200);  // some seconds; the room is for sanitizers on a busy host
}

void long_conversations_fit_the_limits() {
    std::vector<assay::ChatMessage> messages;
    for (int i = 0; i < 2000; ++i) messages.push_back({i % 2 == 0 ? "user" : "assistant", repeat("words and more ", 100)});
    const std::string text = render(
        "{% set ns = namespace(s='') %}{% for m in messages %}{% if '</think>' in m.content %}x{% endif %}"
        "{{ m.role | upper + ': ' + m['content'].strip().split('</think>')[-1] | trim + '\\n' }}{% endfor %}",
        messages);
    CHECK(text.size() > 2000 * 1500);
}

void bytes_that_are_no_utf8_pass_through() {
    const std::string bytes = "a\xFF\xC3 \xE4\xBD";
    CHECK_EQUAL(render("{{ messages[0].content | trim }}", {{"user", bytes}}), bytes);
    CHECK_EQUAL(render("{{ messages[0].content | length }}", {{"user", bytes}}), "6");
}

void arbitrary_templates_never_crash() {
    constexpr std::string_view kPieces[] = {"{{", "}}", "{%", "%}", "{#", "#}", "-", "+", " ", "\n", "if", "for", "in", "set",
                                            "endif", "endfor", "endset", "else", "x", "loop", "messages", "'a'", "1", "[", "]",
                                            "(", ")", "{", "}", "|", "trim", ".", ",", ":", "=", "~", "not", "is", "and",
                                            "defined", "*", "%", "\\", "'", "\"", "\xC3\xA9", "\xFF", "namespace", "range"};
    std::mt19937 random(11);
    int n_rendered = 0;
    for (int i = 0; i < 20000; ++i) {
        std::string source = random() % 3 == 0 ? "" : random() % 2 == 0 ? "{{ " : "{% ";
        for (size_t n = random() % 12; n > 0; --n) {
            source += kPieces[random() % std::size(kPieces)];
            if (random() % 2 == 0) source += ' ';
        }
        if (random() % 2 == 0) source += "}}";
        if (check::error_of([&] { render(source); }).empty()) ++n_rendered;
    }
    CHECK(n_rendered > 500 && n_rendered < 19500);
}

}  // namespace

int main() {
    what_is_not_supported_is_named_with_its_line();
    malformed_templates_are_errors();
    raised_texts_come_through_as_they_are();
    deep_nesting_is_an_error_and_no_crash();
    time_and_memory_are_bounded();
    long_conversations_fit_the_limits();
    bytes_that_are_no_utf8_pass_through();
    arbitrary_templates_never_crash();
    return check::finish();
}

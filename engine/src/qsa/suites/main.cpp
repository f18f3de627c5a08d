// qsa_suites: the named suites of block selection against the library beside it, with a receipt.
//
// Needs no model. The receipt says what library was tested, how many cases each suite has and which failed; the exit
// code is 0 when all passed, 1 when one failed, 2 for a usage error.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "json_text.h"
#include "outlet.h"
#include "qsa/suites/fixture.h"

namespace {

using namespace assay::qsa::suites;

constexpr const char* kUsage =
    "qsa_suites [--routes] [SUITE ...]\n"
    "Suites: reproducer mapping state allocation prefix routes equality (all, when none is named).\n"
    "Prints a receipt, one line of JSON; --routes prints the table of routes instead.\n";

struct Known {
    const char* name;
    Suite (*run)();
};
constexpr Known kSuites[] = {{"reproducer", reproducer}, {"mapping", mapping}, {"state", state},
                             {"allocation", allocation}, {"prefix", prefix},   {"routes", routes},
                             {"equality", equality}};

void write_faults(assay::JsonText& json) {
    json.key("faults");
    json.open('[');
    const std::string faults = assay::qsa::faults();
    for (size_t begin = 0; begin < faults.size();) {
        const size_t end = std::min(faults.find(',', begin), faults.size());
        json.value(faults.substr(begin, end - begin));
        begin = end + 1;
    }
    json.close(']');
}

bool write_suite(assay::JsonText& json, const Suite& suite) {
    std::vector<const Case*> failed;
    for (const Case& one : suite.cases) {
        if (!one.problems.empty()) failed.push_back(&one);
    }
    json.key(suite.name);
    json.open('{');
    json.field("cases", suite.cases.size());
    json.field("failed", failed.size());
    if (!suite.digest.empty()) json.field("inputs_fnv1a64", suite.digest);
    json.key("failures");
    json.open('[');
    for (const Case* one : failed) {
        json.open('{');
        json.field("case", one->name);
        json.field("problem", one->problems.front());
        json.close('}');
    }
    json.close(']');
    json.close('}');
    return failed.empty();
}

int print_routes() {
    for (const RouteLine& line : route_table()) {
        std::printf("| %s | %s | %s | %s |\n", line.policy, line.name, line.route, line.reason);
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<Known> wanted;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--routes") == 0) return assay::written("qsa_suites", print_routes());
        if (std::strcmp(argv[i], "--help") == 0) {
            std::fputs(kUsage, stdout);
            return assay::written("qsa_suites", 0);
        }
        const size_t before = wanted.size();
        for (const Known& known : kSuites) {
            if (std::strcmp(argv[i], known.name) == 0) wanted.push_back(known);
        }
        if (wanted.size() == before) {
            std::fprintf(stderr, "qsa_suites: no suite is called '%s'\n%s", argv[i], kUsage);
            return 2;
        }
    }
    if (wanted.empty()) wanted.assign(std::begin(kSuites), std::end(kSuites));

    assay::JsonText json;
    json.open('{');
    json.field("format", "assay-qsa-suites/1");
    json.field("path", assay::qsa::path());
    write_faults(json);
    json.key("suites");
    json.open('{');
    bool is_passed = true;
    for (const Known& known : wanted) is_passed = write_suite(json, known.run()) && is_passed;
    json.close('}');
    json.field("passed", is_passed);
    json.close('}');
    std::printf("%s\n", json.text().c_str());
    return assay::written("qsa_suites", is_passed ? 0 : 1);
}

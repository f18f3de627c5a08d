// The end of a program whose result is what it prints: a result that could not be written is no result.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace assay {

// Returns `code`, or 1 in place of it where standard output took not everything (a full disk, a closed descriptor).
inline int written(const char* program, int code) {
    errno = 0;
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    const int reason = errno;
    std::fprintf(stderr, "%s: the output cannot be written%s%s\n", program, reason == 0 ? "" : ": ",
                 reason == 0 ? "" : std::strerror(reason));
    return 1;
}

}  // namespace assay

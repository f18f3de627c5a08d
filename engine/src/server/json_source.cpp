// The one translation unit that compiles Boost.JSON (header-only elsewhere).
#include <boost/json/src.hpp>

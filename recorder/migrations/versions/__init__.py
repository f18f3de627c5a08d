"""One module a step; its tables are declared in the words of its own time, never in today's."""

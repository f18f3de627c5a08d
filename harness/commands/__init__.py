"""One module for each family of commands; each command is short and delegates."""

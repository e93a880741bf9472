"""The commands, one file each: parse, call one function of the library, report."""

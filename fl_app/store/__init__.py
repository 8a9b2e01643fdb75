"""One way to put a thing on disk: atomic writes, locks, sealed files, run directories, captures, reconstructions."""

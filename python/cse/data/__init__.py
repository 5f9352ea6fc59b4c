"""From text files and tables to rows. Nothing here imports torch."""

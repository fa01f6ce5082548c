"""From what was seen of a run to its verdict, and to what else its reader should know."""

"""Reading of stored runs, and pictures and pages made from them."""

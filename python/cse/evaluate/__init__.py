"""How good an encoder is: with labels (``sts``), without (``halves``), and its geometry."""

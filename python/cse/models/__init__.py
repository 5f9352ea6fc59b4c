"""Import path of ``OtherEncoder`` for other packages."""

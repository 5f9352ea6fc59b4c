"""Writing models: folders, model cards, merged weights, and export to ONNX."""

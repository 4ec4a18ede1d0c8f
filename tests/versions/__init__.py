"""What users do first, on the control plane of each minor."""

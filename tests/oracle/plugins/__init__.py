"""Plug-ins of a kubelet, each a small gRPC server, as the programs of their vendors are.

Source: k8s.io/kubelet, pkg/apis: pluginregistration/v1, deviceplugin/v1beta1, dra/v1,
dra-health/v1alpha1; github.com/container-storage-interface/spec, csi.proto.
"""

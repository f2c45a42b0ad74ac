"""One adapter per framework, the protocol they follow, a registry, and manifests of known failures."""

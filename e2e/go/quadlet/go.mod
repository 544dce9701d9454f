module slipway.dev/e2e/quadlet

go 1.26.0

tool github.com/containers/podman/v5/cmd/quadlet

require (
	github.com/containers/podman/v5 v5.6.2 // indirect
	github.com/containers/storage v1.59.1 // indirect
)

// SPDX-License-Identifier: Apache-2.0
// An NRI plugin that gives containers the hooks of hooks.d, for tests: what containerd's hook-injector does.
//
// Files are matched against the container's annotations with the pod's put over them: of two of one name the pod's
// counts, though in the container's specification it is the other way round. The files are read for each container, so
// that a test may change them. With files that cannot be read the container runs without hooks, as it does where
// upstream's plugin did not start because of them.
package main

import (
	"context"
	"log"
	"maps"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/opencontainers/runtime-spec/specs-go"
	"go.podman.io/common/pkg/hooks"
)

type injector struct{}

func (injector) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (
	*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	found, err := hooks.New(ctx, []string{hooks.DefaultDir, hooks.OverrideDir}, nil)
	if err != nil {
		log.Printf("%s: runs without hooks: %v", container.GetId(), err)
		return nil, nil, nil
	}
	annotations := map[string]string{}
	maps.Copy(annotations, container.GetAnnotations())
	maps.Copy(annotations, pod.GetAnnotations())
	spec := specs.Spec{Process: &specs.Process{Args: container.GetArgs()}}
	if _, err := found.Hooks(&spec, annotations, len(container.GetMounts()) > 0); err != nil {
		return nil, nil, err
	}
	adjustment := &api.ContainerAdjustment{}
	adjustment.AddHooks(api.FromOCIHooks(spec.Hooks))
	return adjustment, nil, nil
}

func main() {
	plugin, err := stub.New(injector{})
	if err != nil {
		log.Fatal(err)
	}
	if err := plugin.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// SPDX-License-Identifier: Apache-2.0
// Answers which hooks of hooks.d a container gets, for tests: by the package that CRI-O, Podman and the NRI
// hook-injector share. A line of JSON in, a line of JSON out, until stdin ends.
//
// In: {"directories": [...], "annotations": {...}, "args": [...], "bindMounts": false}. Out: {"hooks": {stage: [...]}},
// or {"error": "..."} where its readers would refuse all files, or the container.
package main

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"go.podman.io/common/pkg/hooks"
)

type question struct {
	Directories []string
	Annotations map[string]string
	Args        []string
	BindMounts  bool
}

type answer struct {
	Hooks *specs.Hooks `json:"hooks,omitempty"`
	Error string       `json:"error,omitempty"`
}

func main() {
	questions, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var asked question
		if err := questions.Decode(&asked); err == io.EOF {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		if err := answers.Encode(match(asked)); err != nil {
			log.Fatal(err)
		}
	}
}

func match(asked question) answer {
	found, err := hooks.New(context.Background(), asked.Directories, nil)
	if err != nil {
		return answer{Error: err.Error()}
	}
	spec := specs.Spec{Process: &specs.Process{Args: asked.Args}}
	if _, err := found.Hooks(&spec, asked.Annotations, asked.BindMounts); err != nil {
		return answer{Error: err.Error()}
	}
	if spec.Hooks == nil {
		spec.Hooks = &specs.Hooks{}
	}
	return answer{Hooks: spec.Hooks}
}

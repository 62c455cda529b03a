// SPDX-License-Identifier: Apache-2.0
// Renders a chart's templates as Helm does, for tests: with Go's template engine, sprig and sigs.k8s.io/yaml, which are
// what Helm itself is made of, and the few functions that Helm adds (pkg/engine). Not there: what this chart has no use
// for (tpl, .Capabilities). Strict: a value that does not exist is an error.
//
//	GO111MODULE=off GOPATH=/usr/share/gocode go run main.go < input.json > files.json
//
// Input: {"templates": {name: text}, "files": {name: text}, "context": {"Values": ..., "Release": ..., "Chart": ...},
// "cluster": {"kind namespace/name": object}}; output: {name: text}.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

// files are those of the chart that are no templates.
type files map[string]string

func (f files) Get(name string) string {
	return f[name]
}

func main() {
	var input struct {
		Templates map[string]string
		Files     files
		Context   map[string]interface{}
		Cluster   map[string]map[string]interface{}
	}
	fail(json.NewDecoder(os.Stdin).Decode(&input))
	input.Context["Files"] = input.Files

	chart := template.New("chart").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	delete(functions, "env") // Helm has neither
	delete(functions, "expandenv")
	functions["include"] = func(name string, data interface{}) (string, error) {
		var text bytes.Buffer
		err := chart.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	functions["required"] = func(warning string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return value, errors.New(warning)
		}
		return value, nil
	}
	functions["lookup"] = func(_, kind, namespace, name string) map[string]interface{} {
		if found, ok := input.Cluster[kind+" "+namespace+"/"+name]; ok {
			return found
		}
		return map[string]interface{}{}
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	functions["fromYaml"] = func(text string) (map[string]interface{}, error) {
		value := map[string]interface{}{}
		err := yaml.Unmarshal([]byte(text), &value)
		return value, err
	}
	functions["fromYamlArray"] = func(text string) ([]interface{}, error) {
		value := []interface{}{}
		err := yaml.Unmarshal([]byte(text), &value)
		return value, err
	}
	chart.Funcs(functions)
	for name, text := range input.Templates {
		_, err := chart.New(name).Parse(text)
		fail(err)
	}

	rendered := map[string]string{}
	for name := range input.Templates {
		if strings.HasPrefix(name, "_") {
			continue
		}
		var text bytes.Buffer
		fail(chart.ExecuteTemplate(&text, name, input.Context))
		rendered[name] = text.String()
	}
	fail(json.NewEncoder(os.Stdout).Encode(rendered))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

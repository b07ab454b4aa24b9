// Command perdurevet finds mistakes in the code of agents before it runs. It takes packages, or is
// a tool of go vet:
//
//	perdurevet ./...
//	go vet -vettool=$(which perdurevet) ./...
//
// A flag turns one rule on or off, such as -agentclock=false, and "perdurevet help" lists them.
// docs/vet.md has a paragraph for each. The rules are in package agentvet, for other drivers.
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/perdure/perdure/agentvet"
)

func main() { multichecker.Main(agentvet.Analyzers()...) }

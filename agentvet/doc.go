// Package agentvet finds mistakes in the code of agents before it runs. Each mistake breaks one of
// the rules of package agent in a way that a compiler accepts and that a test may not meet. They
// are analyzers of golang.org/x/tools/go/analysis, so that every driver of such analyzers can run
// them: cmd/perdurevet, go vet -vettool, and golangci-lint. docs/vet.md has a paragraph for each.
//
// # How it works
//
// An agent is code that has an *agent.Context. The analyzer scopes finds out to what each function
// of a package belongs: to an agent, to a step of one, or to neither. A function that has a
// parameter of the type is an agent's, and so is one that passes such a context on. A function
// literal belongs to where it is written, unless it is passed to Step, Parallel or Undo, or to a
// function with an agent's context that takes the function of a step. The rules ask scopes, and
// look at one package at a time.
//
// # What it is not
//
// The rules look at one function at a time and don't follow calls. They find what is written in an
// agent, and not what a function that it calls does. A rule that can't tell says nothing: a false
// alarm costs more than a miss, because package agenttest and the journal find the rest.
//
// # Where to start reading
//
// agentvet.go has the list, scopes.go says what code belongs to, and each rule has a file.
package agentvet

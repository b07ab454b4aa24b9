package typescript

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/internal/testkit/agentcases"
)

var (
	isHeld  = agentcases.Misuse{Held: agent.CodeMisuse}
	isRight = agentcases.Misuse{Right: "done"}
)

// instead has the rows whose outcome is another one in TypeScript.
var instead = map[string]agentcases.Misuse{
	// The step's function has a context of its own for these.
	"`Delta` and `Emit` with the agent's context inside of a step": isHeld,
	// A branch is told by its context, and not by a goroutine.
	"a branch that uses the context of the agent": isHeld,
	// A limit is code, as a name is.
	"a `Limit` of -1":   isHeld,
	"a `Limit` of 1001": isHeld,
	// The type of a line gets the prefix x: if it lacks it.
	"an `Emit` of a type that is the server's": isRight,
	// Half of a pair is refused, because JSON.stringify writes it as an escape.
	"half of a surrogate pair": {Error: perdure.CodeInvalid},
	// An error in toJSON is one of the value.
	"a panic in the `MarshalJSON` of a result": {Error: "invalid_result"},
	"a channel as the input of a child":        {Error: "invalid_result"},
	"an `Emit` of a channel":                   {Error: "invalid_result"},
	// All errors of a step are failures.
	"a panic in a step":                       {Fails: "failed"},
	"a panic in an item of a `Parallel`":      {Fails: "failed"},
	"a nil error of its own type from a step": {Fails: "failed"},
	// The order of the names of an object is determined.
	"`range` over a map around steps":                        isRight,
	"the items of a `Parallel` come from the order of a map": isRight,
	"the error of a step is dropped":                         isRight,
	"an input of a child that is nested 2000 deep":           {Error: "invalid_result"},
	"a `Delta` with a NUL":                                   isRight,
}

// caught are the rows in which the error is thrown by the agent itself: an agent that catches it has handled it.
var caught = map[string]bool{
	"a panic in the agent's code": true, "a panic with an error": true, "a write into a nil map": true,
	"an index out of range": true, "a panic behind a wait": true, "a panic in a branch": true,
}

const (
	ofTheContext = "step functions are given what they need: there is no call that takes another context"
	atOnce       = "the call is made at once, so no other one is under way"
	ofAll        = "ctx.all begins and joins its branches in one call"
	ofTheKit     = "perdure/test finds it: its test has such an agent"
	notFound     = "nothing finds it, as in Go without its vet: take the context from the function's parameter"
	ofGo         = "the language has no such thing"
	ofTheServer  = "the server refuses it, and the tests of the server have it"
)

// missing has the rows that TypeScript does not have, with the reason.
var missing = map[string]string{
	"`IdempotencyKey` with the agent's context, in a step": ofTheContext,
	"`IdempotencyKey` outside of a step":                   ofTheContext,
	"a `Progress` with a context that is no agent's":       ofTheContext,
	"`Join` of a branch inside of a step":                  ofAll,
	"a branch that is not joined":                          ofAll,
	"a branch whose name is in use":                        ofAll,
	"a branch that joins itself":                           ofAll,
	"a branch that is joined in another one":               ofAll,
	"a branch that is joined twice":                        ofAll,
	"a branch that no call returned":                       ofAll,
	"`Version` in a bare goroutine":                        atOnce,
	"`Removed` in a bare goroutine":                        atOnce,
	"`Now` in a bare goroutine":                            atOnce,
	"`UUID` in a bare goroutine":                           atOnce,
	"`Message` in a bare goroutine":                        atOnce,
	"`Continue` in a bare goroutine":                       atOnce,
	"a step in a goroutine of a `sync.WaitGroup`":          ofGo,

	"a step's function adds to a variable of the agent":      ofTheKit,
	"a step's function appends to a slice of the agent":      ofTheKit,
	"a step's function decodes into a variable of the agent": ofTheKit,
	"`time.Now` as a start, and `time.Since` behind a wait":  ofTheKit,
	"dice in the result":                                     ofTheKit,
	"an environment variable decides":                        ofTheKit,
	"the name of the machine decides":                        ofTheKit,
	"a global counter is in the result":                      ofTheKit,
	"the agent's context in a global variable":               notFound,
	"a file is written outside of a step":                    ofTheKit,
	"`panic(nil)`":                                           ofGo,
	"a panic in the `Error` of an error that a step returns": ofGo,
	"`runtime.Goexit` in the agent's code":                   ofGo,
	"`runtime.Goexit` in a step":                             ofGo,
	"`runtime.Goexit` in a branch":                           ofGo,
	"a complex number as a result":                           ofGo,
	"half a JSON":                                            ofGo,
	"an `UnmarshalJSON` that fails":                          ofGo,
	"a result with unexported fields":                        ofGo,
	"an `Undo` of another type":                              ofGo,
	"a step with a nil context":                              ofGo,
	"a wait with a nil context":                              ofGo,
	"a child with a nil context":                             ofGo,
	"a wait with a nil context inside of a step":             ofGo,
	"a wait with a nil context in a branch":                  ofGo,
	"an `Emit` with a nil context":                           ofGo,
	"a context that the agent has made":                      ofGo,
	"a join of a future that no call returned":               ofGo,
	"the `Result` of a future that no call returned":         ofGo,
	"the `Cancel` of a nil future":                           ofGo,
	"a result of the agent of 2 MiB":                         "the result is checked before it is sent: too_large",
	"a result of the agent with a NUL":                       "the result is checked before it is sent: invalid",
	"an action to approve of 100 KiB":                        ofTheServer,
	"a child with a priority of 1000":                        ofTheServer,
	"a child whose time has passed":                          ofTheServer,
	"a `Sleep` of 400 days":                                  ofTheServer,
	"an `Approve` with a default that is none":               ofTheServer,
}

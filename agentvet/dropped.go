package agentvet

import (
	"go/ast"
	"go/types"
)

// Dropped finds calls of package agent whose error is not looked at.
var Dropped = rule("agenterror", "report a dropped error of a step, a message or a wait\n\n"+
	"The error of a step says that its effect may be missing, and an error that the agent goes past is\n"+
	"recorded as one that it has handled. A message whose error is dropped may never have been said.", checkDropped)

func checkDropped(c *checker) {
	c.walk(func(n ast.Node, stack []ast.Node) {
		switch n := n.(type) {
		case *ast.ExprStmt:
			c.checkError(n.X)
		case *ast.GoStmt:
			c.checkError(n.Call)
		case *ast.DeferStmt:
			c.checkError(n.Call)
		case *ast.AssignStmt:
			if len(n.Rhs) == 1 {
				if id, ok := n.Lhs[len(n.Lhs)-1].(*ast.Ident); ok && id.Name == "_" {
					c.checkError(n.Rhs[0])
				}
			}
		}
	})
}

// checkError reports a call whose last result is an error of package agent.
func (c *checker) checkError(e ast.Expr) {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	if !ok {
		return
	}
	f := c.agentCallee(call)
	// A child that is not cancelled ends with its parent.
	if f == nil || !takesAgentContext(f) || f.Name() == "Cancel" {
		return
	}
	results := f.Signature().Results()
	if results.Len() > 0 && types.Identical(results.At(results.Len()-1).Type(), types.Universe.Lookup("error").Type()) {
		c.report(call, "the error of agent.%s is dropped: return it, or decide by it", f.Name())
	}
}

// takesAgentContext tells whether a function has a parameter or receiver for the agent's context
// alone, and not one that the context of a step would do for.
func takesAgentContext(f *types.Func) bool {
	if r := f.Signature().Recv(); r != nil && isAgentContext(r.Type()) {
		return true
	}
	for p := range f.Signature().Params().Variables() {
		if isAgentContext(p.Type()) {
			return true
		}
	}
	return false
}

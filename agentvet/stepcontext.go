package agentvet

import (
	"go/ast"
	"slices"
)

// StepContext finds the agent's context in the function of a step, which has one of its own.
var StepContext = rule("agentcontext", "report the agent's context inside of a step\n\n"+
	"A wait, a step or a child inside of a step is agent_misuse and holds the run. A call of a service\n"+
	"with the agent's context has no IdempotencyKey, and text of Delta does not name its step.", checkStepContext)

// harmless are methods of an agent's context that may be called in a step.
var harmless = []string{"RunID", "ThreadID", "Unread"}

func checkStepContext(c *checker) {
	c.walk(func(n ast.Node, stack []ast.Node) {
		e, ok := n.(ast.Expr)
		if !ok {
			return
		}
		switch e := e.(type) {
		case *ast.Ident:
			if c.info.Uses[e] == nil {
				return
			}
			if sel, ok := parent(stack).(*ast.SelectorExpr); ok && sel.Sel == e {
				return // the selector is looked at
			}
		case *ast.SelectorExpr:
		default:
			return
		}
		step := c.in(stack).step()
		if step == nil || !isAgentContext(c.typeOf(e)) || c.isOwnOf(step, e) {
			return
		}
		switch p := parent(stack).(type) {
		case *ast.SelectorExpr:
			if slices.Contains(harmless, p.Sel.Name) {
				return
			}
		case *ast.CallExpr:
			f := c.agentCallee(p)
			if f != nil && slices.Contains(reports, f.Name()) {
				return
			}
			if f != nil && takesAgentContext(f) {
				c.report(e, "agent.%s inside of a step: a step that is recorded is not executed again, and neither "+
					"is what is in it; call it between steps", f.Name())
				return
			}
		}
		c.report(e, "the agent's context inside of a step: use the context that the step's function is given")
	})
}

// isOwnOf tells whether an expression is a variable that is declared in a step's function.
func (c *checker) isOwnOf(step *function, e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	if !ok {
		return false
	}
	v := c.variable(id)
	// A context that is declared there from an outer one is reported where it is.
	return v == nil || step.contains(v.Pos())
}

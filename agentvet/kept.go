package agentvet

import (
	"go/ast"
	"go/token"
	"go/types"
)

// Kept finds an agent's context that is kept where it outlives the execution.
var Kept = rule("agentkept", "report an agent's context that is kept beyond its execution\n\n"+
	"A context is for one execution of a run. In a field of something that is shared, or in a global\n"+
	"variable, another run or a later execution finds it, and its calls are agent_misuse.", checkKept)

func checkKept(c *checker) {
	c.walk(func(n ast.Node, stack []ast.Node) {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				return
			}
			for i := range min(len(n.Lhs), len(n.Rhs)) {
				if where := c.outlives(n.Lhs[i], c.in(stack)); where != "" && c.holdsContext(n.Rhs[i]) {
					c.reportKept(n, where)
				}
			}
		case *ast.SendStmt:
			if where := c.outlives(n.Chan, c.in(stack)); where != "" && c.holdsContext(n.Value) {
				c.reportKept(n, where)
			}
		}
	})
}

func (c *checker) reportKept(n ast.Node, where string) {
	c.report(n, "the agent's context is kept in %s, and outlives its execution there: pass it as an argument, or keep "+
		"it in something that is made anew in each execution", where)
}

// holdsContext tells whether an expression is an agent's context, or a literal that has one in it.
func (c *checker) holdsContext(e ast.Expr) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.UnaryExpr:
		return e.Op == token.AND && c.holdsContext(e.X)
	case *ast.KeyValueExpr:
		return c.holdsContext(e.Value)
	case *ast.CompositeLit:
		for _, x := range e.Elts {
			if c.holdsContext(x) {
				return true
			}
		}
		return false
	case *ast.CallExpr:
		if id, ok := e.Fun.(*ast.Ident); ok && id.Name == "append" && c.info.Types[id].IsBuiltin() {
			for _, x := range e.Args[1:] {
				if c.holdsContext(x) {
					return true
				}
			}
		}
		return false
	case *ast.Ident:
		return c.info.Uses[e] != types.Universe.Lookup("nil") && isAgentContext(c.typeOf(e))
	case ast.Expr:
		return isAgentContext(c.typeOf(e))
	}
	return false
}

// outlives says what a place belongs to that exists longer than one call of the agent's function.
// It returns nothing for a variable of the function itself.
func (c *checker) outlives(place ast.Expr, f *function) string {
	id, through := root(place)
	if id == nil {
		return ""
	}
	v := c.variable(id)
	if v == nil {
		return ""
	}
	agent := f.agent()
	switch {
	case v.Parent() == v.Pkg().Scope():
		return "the global variable " + v.Name()
	case agent == nil:
		return ""
	case !agent.contains(v.Pos()):
		return v.Name() + ", a variable outside of the agent"
	case through && c.isParameter(v, agent) && isReference(v.Type()):
		return v.Name() + ", which the agent was given"
	}
	return ""
}

// root returns the variable that an expression begins with, and whether the expression is a part of
// it.
func root(e ast.Expr) (id *ast.Ident, part bool) {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x, part
		case *ast.ParenExpr:
			e = x.X
			continue
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		default:
			return nil, false
		}
		part = true
	}
}

// isParameter tells whether a variable is a parameter or the receiver of a function.
func (c *checker) isParameter(v *types.Var, f *function) bool {
	if d, ok := f.node.(*ast.FuncDecl); ok {
		return within(d.Type, v.Pos()) || d.Recv != nil && within(d.Recv, v.Pos())
	}
	return within(f.node.(*ast.FuncLit).Type, v.Pos())
}

// isReference tells whether copies of a value share the value that it refers to.
func isReference(t types.Type) bool {
	switch t.Underlying().(type) {
	case *types.Pointer, *types.Map, *types.Slice, *types.Chan:
		return true
	}
	return false
}

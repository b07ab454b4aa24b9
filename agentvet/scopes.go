package agentvet

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// agentPath is the package whose users are looked at.
const agentPath = "github.com/perdure/perdure/agent"

// A kind says what a function belongs to.
type kind int

const (
	// inherited is the kind of a function literal that belongs to where it is written.
	inherited kind = iota
	// plain is code that has nothing to do with agents.
	plain
	// agentCode is executed anew in every execution of a run.
	agentCode
	// stepCode is the function of a step, which is not called again once its result is recorded.
	stepCode
	// unknown is a function of which can't be said whether an agent or a step calls it.
	unknown
)

// A function is a declaration or a literal.
type function struct {
	node   ast.Node // *ast.FuncDecl or *ast.FuncLit
	parent *function
	own    kind
	// found says that the function is an agent's by what it does, and not by its parameters.
	found bool
}

func (f *function) kind() kind {
	for ; f != nil; f = f.parent {
		if f.own != inherited {
			return f.own
		}
	}
	return plain
}

// agent returns the outermost function that belongs to the same agent, or nil. Around a function
// that is given a context there may be one that has another agent's.
func (f *function) agent() (out *function) {
	for ; f != nil; f = f.parent {
		if f.own == agentCode && (out == nil || out.found || !f.found) {
			out = f
		}
	}
	return out
}

// step returns the step's function that a function belongs to, or nil.
func (f *function) step() *function {
	for ; f != nil && f.own != agentCode; f = f.parent {
		if f.own == stepCode {
			return f
		}
	}
	return nil
}

func (f *function) contains(pos token.Pos) bool { return f.node.Pos() <= pos && pos < f.node.End() }

// A bound is a function literal that a local variable holds.
type bound struct {
	lit  *ast.FuncLit
	uses []*ast.Ident
}

// scopes are the functions of a package, and what each of them belongs to.
type scopes struct {
	info      *types.Info
	files     []*ast.File
	hasAgents bool
	functions map[ast.Node]*function
	bound     map[types.Object]*bound
	ignores   map[*token.File][]ignore
}

func newScopes(pass *analysis.Pass) *scopes {
	s := &scopes{info: pass.TypesInfo, files: pass.Files, functions: make(map[ast.Node]*function),
		bound: make(map[types.Object]*bound), ignores: make(map[*token.File][]ignore)}
	// The package itself has a Context everywhere, and is no agent.
	if pass.Pkg.Path() == agentPath {
		return s
	}
	for _, i := range pass.Pkg.Imports() {
		s.hasAgents = s.hasAgents || i.Path() == agentPath
	}
	if !s.hasAgents {
		return s
	}
	for _, file := range s.files {
		s.ignores[pass.Fset.File(file.FileStart)] = ignoresOf(pass.Fset, file)
		s.findBound(file)
	}
	s.walk(func(n ast.Node, stack []ast.Node) { s.classify(n, stack) })
	s.walk(func(n ast.Node, stack []ast.Node) { s.classifyByCalls(n, stack) })
	s.releaseBound()
	return s
}

// walk calls a function for each node of the package, with the nodes around it, the outermost
// first.
func (s *scopes) walk(visit func(n ast.Node, stack []ast.Node)) {
	for _, file := range s.files {
		walk(file, visit)
	}
}

func walk(root ast.Node, visit func(n ast.Node, stack []ast.Node)) {
	var stack []ast.Node
	ast.Inspect(root, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		visit(n, stack)
		stack = append(stack, n)
		return true
	})
}

// in returns the function that a node is in, by the nodes around it.
func (s *scopes) in(stack []ast.Node) *function {
	for i := len(stack) - 1; i >= 0; i-- {
		if f := s.functions[stack[i]]; f != nil {
			return f
		}
	}
	return nil
}

// findBound notes which local variables hold a function literal from their declaration on.
func (s *scopes) findBound(file *ast.File) {
	bind := func(left, right ast.Expr) {
		id, isName := left.(*ast.Ident)
		lit, isLit := right.(*ast.FuncLit)
		if isName && isLit && s.info.Defs[id] != nil {
			s.bound[s.info.Defs[id]] = &bound{lit: lit}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i := range min(len(n.Lhs), len(n.Rhs)) {
				bind(n.Lhs[i], n.Rhs[i])
			}
		case *ast.ValueSpec:
			for i := range min(len(n.Names), len(n.Values)) {
				bind(n.Names[i], n.Values[i])
			}
		case *ast.Ident:
			if b := s.bound[s.info.Uses[n]]; b != nil {
				b.uses = append(b.uses, n)
			}
		}
		return true
	})
}

// classify notes a function and what it belongs to by its parameters and its place.
func (s *scopes) classify(n ast.Node, stack []ast.Node) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		f := &function{node: n, own: plain}
		if s.takes(n.Type, isAgentContext) {
			f.own = agentCode
		}
		s.functions[n] = f
	case *ast.FuncLit:
		f := &function{node: n, parent: s.in(stack)}
		s.functions[n] = f
		switch call, _ := parent(stack).(*ast.CallExpr); {
		case s.takes(n.Type, isAgentContext):
			f.own = agentCode
		case call != nil && call.Fun != n && s.isStepArgument(call, n.Type):
			f.own = stepCode
		case s.takesFirst(n.Type, isContext) && f.parent.kind() == agentCode,
			call != nil && call.Fun != n && s.agentCallee(call) == nil && s.passesAgentContext(call):
			f.own = unknown
		}
	}
}

// classifyByCalls notes functions that have an agent's context from elsewhere than a parameter, and
// variables whose function is that of a step.
func (s *scopes) classifyByCalls(n ast.Node, stack []ast.Node) {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return
	}
	if f := s.in(stack); f != nil && f.kind() == plain && s.passesAgentContext(call) && !s.isTest(f) {
		f.own, f.found = agentCode, true
	}
	for _, arg := range call.Args {
		id, ok := ast.Unparen(arg).(*ast.Ident)
		if !ok {
			continue
		}
		if b := s.bound[s.info.Uses[id]]; b != nil && s.isStepArgument(call, b.lit.Type) {
			s.functions[b.lit].own = stepCode
		}
	}
}

// isTest tells whether a function is a test, which may have the context of an agent that it tests.
func (s *scopes) isTest(f *function) bool {
	d, ok := f.node.(*ast.FuncDecl)
	return ok && s.takes(d.Type, func(t types.Type) bool {
		return isPointerTo(t, "testing", "T") || isPointerTo(t, "testing", "B")
	})
}

// releaseBound takes functions of local variables away from an agent that uses them in steps alone.
func (s *scopes) releaseBound() {
	inStep := make(map[*ast.Ident]bool)
	s.walk(func(n ast.Node, stack []ast.Node) {
		if id, ok := n.(*ast.Ident); ok && s.bound[s.info.Uses[id]] != nil {
			k := s.in(stack).kind()
			inStep[id] = k == stepCode || k == unknown
		}
	})
	for _, b := range s.bound {
		f := s.functions[b.lit]
		if f == nil || f.own != inherited || len(b.uses) == 0 {
			continue
		}
		all := true
		for _, id := range b.uses {
			all = all && inStep[id]
		}
		if all {
			f.own = unknown
		}
	}
}

// isStepArgument tells whether a call takes a function of a type as that of a step.
func (s *scopes) isStepArgument(call *ast.CallExpr, t *ast.FuncType) bool {
	if !s.takesFirst(t, isContext) {
		return false
	}
	return s.agentCallee(call) != nil || s.passesAgentContext(call)
}

// agentCallee returns the function or method of package agent that a call calls, or nil.
func (s *scopes) agentCallee(call *ast.CallExpr) *types.Func {
	f, ok := typeutil.Callee(s.info, call).(*types.Func)
	if !ok || f.Pkg() == nil || f.Pkg().Path() != agentPath {
		return nil
	}
	return f
}

// passesAgentContext tells whether an argument of a call is an agent's context, and is taken as
// one.
func (s *scopes) passesAgentContext(call *ast.CallExpr) bool {
	sig, ok := s.typeOf(call.Fun).Underlying().(*types.Signature)
	if !ok {
		return false
	}
	for i, arg := range call.Args {
		if isAgentContext(s.typeOf(arg)) && (s.agentCallee(call) != nil || i < sig.Params().Len() &&
			isAgentContext(sig.Params().At(i).Type())) {
			return true
		}
	}
	return false
}

// takes tells whether a function has a parameter of a type.
func (s *scopes) takes(t *ast.FuncType, is func(types.Type) bool) bool {
	for _, p := range t.Params.List {
		if is(s.typeOf(p.Type)) {
			return true
		}
	}
	return false
}

func (s *scopes) takesFirst(t *ast.FuncType, is func(types.Type) bool) bool {
	return len(t.Params.List) > 0 && is(s.typeOf(t.Params.List[0].Type))
}

// typeOf returns the type of an expression. The type of one that is none is invalid.
func (s *scopes) typeOf(e ast.Expr) types.Type {
	if t := s.info.TypeOf(e); t != nil {
		return t
	}
	return types.Typ[types.Invalid]
}

// variable returns the variable that an identifier names, or nil.
func (s *scopes) variable(id *ast.Ident) *types.Var {
	v, _ := s.info.ObjectOf(id).(*types.Var)
	return v
}

func isAgentContext(t types.Type) bool { return isPointerTo(t, agentPath, "Context") }

func isContext(t types.Type) bool { return isNamed(t, "context", "Context") }

func isPointerTo(t types.Type, path, name string) bool {
	p, ok := types.Unalias(t).(*types.Pointer)
	return ok && isNamed(p.Elem(), path, name)
}

func isNamed(t types.Type, path, name string) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && n.Obj().Name() == name && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == path
}

// parent returns the innermost node of a stack that is no parenthesis, or nil.
func parent(stack []ast.Node) ast.Node {
	for i := len(stack) - 1; i >= 0; i-- {
		if _, ok := stack[i].(*ast.ParenExpr); !ok {
			return stack[i]
		}
	}
	return nil
}

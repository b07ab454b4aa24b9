package agentvet

import (
	"go/ast"
	"go/token"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

const page = "https://github.com/perdure/perdure/blob/main/docs/vet.md"

// Analyzers returns all rules, for a driver that takes many.
func Analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{Assign, MapOrder, Clock, Effect, Go, StepContext, Dropped, Kept}
}

// scopesAnalyzer finds out once for all rules what belongs to agents and to steps.
var scopesAnalyzer = &analysis.Analyzer{
	Name:       "agentscopes",
	Doc:        "find the code of agents and of their steps",
	ResultType: reflect.TypeFor[*scopes](),
	Run: func(pass *analysis.Pass) (any, error) {
		return newScopes(pass), nil
	},
}

// rule returns an analyzer that calls a function for each package that may have agents.
func rule(name, doc string, check func(*checker)) *analysis.Analyzer {
	return &analysis.Analyzer{
		Name: name, Doc: doc, URL: page + "#" + name, Requires: []*analysis.Analyzer{scopesAnalyzer},
		Run: func(pass *analysis.Pass) (any, error) {
			s := pass.ResultOf[scopesAnalyzer].(*scopes)
			if s.hasAgents {
				check(&checker{scopes: s, pass: pass, name: name})
			}
			return nil, nil
		},
	}
}

// A checker is one rule at work on one package.
type checker struct {
	*scopes
	pass *analysis.Pass
	name string
}

// report tells of a finding, unless a comment says that it is meant.
func (c *checker) report(n ast.Node, format string, args ...any) {
	if !c.ignored(n.Pos()) {
		c.pass.ReportRangef(n, format, args...)
	}
}

// ignored tells whether a comment permits a finding of this rule at a position.
func (c *checker) ignored(pos token.Pos) bool {
	line := c.pass.Fset.Position(pos).Line
	for _, x := range c.ignores[c.pass.Fset.File(pos)] {
		if x.first <= line && line <= x.last && slices.Contains(x.rules, c.name) {
			return true
		}
	}
	return false
}

// An ignore permits findings of some rules in some lines.
type ignore struct {
	first, last int
	rules       []string
}

// directive is followed by the names of rules, with commas between them, and a reason.
const directive = "//perdurevet:ignore "

// ignoresOf reads the comments of a file that permit findings. Such a comment counts for its line
// and for the next one; in the comment of a function for all of it, and before the package clause
// for the whole file.
func ignoresOf(set *token.FileSet, file *ast.File) (out []ignore) {
	line := func(pos token.Pos) int { return set.Position(pos).Line }
	within := make(map[*ast.CommentGroup]ast.Node)
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Doc != nil {
			within[f.Doc] = f
		}
	}
	for _, group := range file.Comments {
		for _, comment := range group.List {
			text, ok := strings.CutPrefix(comment.Text, directive)
			rules, reason, _ := strings.Cut(text, " ")
			if !ok || strings.TrimSpace(reason) == "" {
				continue
			}
			x := ignore{line(comment.Pos()), line(comment.Pos()) + 1, strings.Split(rules, ",")}
			switch f := within[group]; {
			case comment.Pos() < file.Package:
				x.last = line(file.FileEnd)
			case f != nil:
				x.last = line(f.End())
			}
			out = append(out, x)
		}
	}
	return out
}

package model

import "unicode/utf8"

// EstimateTokens estimates how many tokens a text has: one for four bytes of ASCII, and one for each
// other character. Most tokenizers of English count within a fifth of it.
func EstimateTokens(text string) int {
	ascii, others := 0, 0
	for _, r := range text {
		if r < utf8.RuneSelf {
			ascii++
		} else {
			others++
		}
	}
	return (ascii+3)/4 + others
}

// EstimateTokens estimates how many tokens of input a request has. Each message and each tool costs
// a few beside its text.
func (r *Request) EstimateTokens() int {
	n := 3
	for i := range r.Messages {
		n += r.Messages[i].EstimateTokens()
	}
	for _, t := range r.Tools {
		n += 8 + EstimateTokens(t.Name) + EstimateTokens(t.Description) + EstimateTokens(string(t.Parameters))
	}
	return n
}

// EstimateTokens estimates how many tokens a message has.
func (m *Message) EstimateTokens() int {
	n := 4 + EstimateTokens(m.Content)
	for _, c := range m.ToolCalls {
		n += 8 + EstimateTokens(c.Name) + EstimateTokens(c.Arguments)
	}
	return n
}

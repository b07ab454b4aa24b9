package pg

import (
	"encoding/binary"
	"fmt"

	"github.com/perdure/perdure/internal/server/store/scan"
)

// Values have the binary format of the wire protocol. A text is its bytes. A whole number has 2, 4
// or 8 bytes, the most significant first. An array has a header of five 32-bit numbers, then for
// each element its length and its bytes. The length -1 is NULL. The header has the number of
// dimensions (1), whether there may be NULLs, the elements' type, their number, and the first
// index.
//
// The server names the types of a statement's parameters. An argument of another type is refused
// here, because the server would convert it.

const (
	oidInt2, oidInt4, oidInt8        = 21, 23, 20
	oidText, oidBytes                = 25, 17
	oidTextArray, oidInt8Array       = 1009, 1016
	binaryFormat               int16 = 1
)

// A Column is one column of rows, sent as an array. All columns share their rows.
type Column struct {
	Rows *[][]any
	At   int // index of the column in a row
	// Once is set if all rows have the same value, which is then sent instead of an array.
	Once bool
}

// String shows the values of the column, for logs and tests.
func (c *Column) String() string {
	values := make([]any, len(*c.Rows))
	for i, row := range *c.Rows {
		values[i] = row[c.At]
	}
	return fmt.Sprint(values)
}

// Columns gives the columns of rows, as *Column. There must be at least one row.
func Columns(rows [][]any) []any {
	list, out := make([]Column, len(rows[0])), make([]any, len(rows[0]))
	for i := range out {
		list[i] = Column{Rows: &rows, At: i}
		out[i] = &list[i]
	}
	return out
}

// encode gives the arguments in the format of their parameters.
func (st *statement) encode(args []any) ([][]byte, error) {
	if len(args) != len(st.desc.ParamOIDs) {
		return nil, fmt.Errorf("%d arguments for %d parameters", len(args), len(st.desc.ParamOIDs))
	}
	out := make([][]byte, len(args))
	for i, a := range args {
		if c, ok := a.(*Column); ok && c.Once {
			a = (*c.Rows)[0][c.At]
		}
		switch oid := st.desc.ParamOIDs[i]; x := a.(type) {
		case nil:
		case string:
			if oid != oidText {
				return nil, fmt.Errorf("argument %d is a text, and the server wants type %d", i+1, oid)
			}
			out[i] = []byte(x)
		case []byte:
			if oid != oidBytes {
				return nil, fmt.Errorf("argument %d is bytes, and the server wants type %d", i+1, oid)
			}
			out[i] = x
		case int64:
			switch oid {
			case oidInt8:
				out[i] = binary.BigEndian.AppendUint64(nil, uint64(x))
			case oidInt4:
				if int64(int32(x)) != x {
					return nil, fmt.Errorf("argument %d is %d, which the four bytes that the server wants can't hold",
						i+1, x)
				}
				out[i] = binary.BigEndian.AppendUint32(nil, uint32(x))
			default:
				return nil, fmt.Errorf("argument %d is a number, and the server wants type %d", i+1, oid)
			}
		case []string:
			if oid != oidTextArray {
				return nil, fmt.Errorf("argument %d: an array of texts, and the server wants type %d", i+1, oid)
			}
			out[i] = arrayHeader(oidText, len(x), textSize(len(x), func(k int) string { return x[k] }))
			for _, text := range x {
				out[i] = append(binary.BigEndian.AppendUint32(out[i], uint32(len(text))), text...)
			}
		case *Column:
			b, err := x.encode(oid)
			if err != nil {
				return nil, fmt.Errorf("argument %d: %w", i+1, err)
			}
			out[i] = b
		default:
			return nil, fmt.Errorf("argument %d has type %T", i+1, a)
		}
	}
	return out, nil
}

// arrayHeader begins an array of one dimension that may have NULLs. size is the number of bytes of
// its elements.
func arrayHeader(elem uint32, n, size int) []byte {
	b := make([]byte, 0, 20+size)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, elem)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	return binary.BigEndian.AppendUint32(b, 1)
}

// textSize is the number of bytes of n texts in an array.
func textSize(n int, text func(i int) string) int {
	size := 4 * n
	for i := range n {
		size += len(text(i))
	}
	return size
}

// encode gives the column as an array of the parameter's type.
func (c *Column) encode(oid uint32) ([]byte, error) {
	rows := *c.Rows
	var elem uint32
	switch oid {
	case oidTextArray:
		elem = oidText
	case oidInt8Array:
		elem = oidInt8
	default:
		return nil, fmt.Errorf("an array, and the server wants type %d", oid)
	}
	size := 12 * len(rows)
	if elem == oidText {
		size = textSize(len(rows), func(i int) string {
			text, _ := rows[i][c.At].(string)
			return text
		})
	}
	b := arrayHeader(elem, len(rows), size)
	for _, row := range rows {
		switch x := row[c.At].(type) {
		case nil:
			b = binary.BigEndian.AppendUint32(b, 1<<32-1)
			continue
		case string:
			if elem == oidText {
				b = append(binary.BigEndian.AppendUint32(b, uint32(len(x))), x...)
				continue
			}
		case int64:
			if elem == oidInt8 {
				b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(b, 8), uint64(x))
				continue
			}
		}
		return nil, fmt.Errorf("an array of %T, and the server wants type %d", row[c.At], oid)
	}
	return b, nil
}

// scanRow reads a row into the destinations.
func scanRow(st *statement, values [][]byte, dest []any) error {
	if len(dest) != len(values) {
		return fmt.Errorf("%d columns into %d places", len(values), len(dest))
	}
	for i, d := range dest {
		v := values[i]
		if st.desc.Fields[i].DataTypeOID == oidBytes {
			if err := scan.Bytes(d, v); err != nil {
				return err
			}
			continue
		}
		if st.results[i] == binaryFormat && v != nil {
			var n int64
			switch len(v) {
			case 8:
				n = int64(binary.BigEndian.Uint64(v))
			case 4:
				n = int64(int32(binary.BigEndian.Uint32(v)))
			case 2:
				n = int64(int16(binary.BigEndian.Uint16(v)))
			}
			if err := scan.Int(d, n); err != nil {
				return err
			}
			continue
		}
		if err := scan.Text(d, v); err != nil {
			return err
		}
	}
	return nil
}

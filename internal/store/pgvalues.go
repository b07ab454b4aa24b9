package store

import (
	"database/sql"
	"encoding/binary"
	"fmt"
	"reflect"
	"strconv"
)

// How texts and whole numbers travel, in the binary format of the wire protocol.

const (
	oidInt2, oidInt4, oidInt8        = 21, 23, 20
	oidText, oidBytes                = 25, 17
	oidTextArray, oidInt8Array       = 1009, 1016
	binaryFormat               int16 = 1
)

// encode writes arguments as the server wants them.
func (st *pgStatement) encode(args []any) ([][]byte, error) {
	if len(args) != len(st.desc.ParamOIDs) {
		return nil, fmt.Errorf("%d arguments for %d parameters", len(args), len(st.desc.ParamOIDs))
	}
	out := make([][]byte, len(args))
	for i, a := range args {
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
				out[i] = binary.BigEndian.AppendUint32(nil, uint32(x))
			default:
				return nil, fmt.Errorf("argument %d is a number, and the server wants type %d", i+1, oid)
			}
		case []string:
			out[i] = arrayHeader(oidText, len(x))
			for _, text := range x {
				out[i] = append(binary.BigEndian.AppendUint32(out[i], uint32(len(text))), text...)
			}
		case column:
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

// arrayHeader begins an array of one dimension that may hold NULLs.
func arrayHeader(elem uint32, n int) []byte {
	b := make([]byte, 0, 20+16*n)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, elem)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	return binary.BigEndian.AppendUint32(b, 1)
}

func (c column) encode(oid uint32) ([]byte, error) {
	elem := uint32(oidText)
	if oid == oidInt8Array {
		elem = oidInt8
	}
	b := arrayHeader(elem, len(c.rows))
	for _, row := range c.rows {
		switch x := row[c.at].(type) {
		case nil:
			b = binary.BigEndian.AppendUint32(b, 1<<32-1)
		case string:
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(x))), x...)
		case int64:
			b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(b, 8), uint64(x))
		default:
			return nil, fmt.Errorf("an array of %T", x)
		}
	}
	return b, nil
}

// scanRow reads a row into what dest points to.
func scanRow(st *pgStatement, values [][]byte, dest []any) error {
	if len(dest) != len(values) {
		return fmt.Errorf("%d columns into %d places", len(values), len(dest))
	}
	for i, d := range dest {
		v := values[i]
		if st.desc.Fields[i].DataTypeOID == oidBytes {
			if err := putBytes(d, v); err != nil {
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
			if err := putInt(d, n); err != nil {
				return err
			}
			continue
		}
		if err := putText(d, v); err != nil {
			return err
		}
	}
	return nil
}

func putInt(dest any, n int64) error {
	switch d := dest.(type) {
	case *int64:
		*d = n
	case *int:
		*d = int(n)
	case *any:
		*d = n
	case *string:
		*d = strconv.FormatInt(n, 10)
	case sql.Scanner:
		return d.Scan(n)
	default:
		v := reflect.ValueOf(dest).Elem()
		if !v.CanInt() {
			return fmt.Errorf("a number into %T", dest)
		}
		v.SetInt(n)
	}
	return nil
}

func putBytes(dest any, b []byte) error {
	switch d := dest.(type) {
	case *[]byte:
		*d = append([]byte{}, b...)
	case *any:
		*d = append([]byte{}, b...)
	default:
		return putText(dest, b)
	}
	return nil
}

func putText(dest any, text []byte) error {
	switch d := dest.(type) {
	case *string:
		*d = string(text)
	case *any:
		if *d = nil; text != nil {
			*d = string(text)
		}
	case sql.Scanner:
		if text == nil {
			return d.Scan(nil)
		}
		return d.Scan(string(text))
	default:
		v := reflect.ValueOf(dest).Elem()
		switch {
		case v.Kind() == reflect.String:
			v.SetString(string(text))
		case v.CanInt(): // a sum is more than a whole number to the server
			n, err := strconv.ParseInt(string(text), 10, 64)
			if err != nil {
				return fmt.Errorf("a text into %T", dest)
			}
			v.SetInt(n)
		default:
			return fmt.Errorf("a text into %T", dest)
		}
	}
	return nil
}

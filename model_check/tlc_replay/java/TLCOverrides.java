package tlc2.overrides;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import tlc2.value.impl.BoolValue;
import tlc2.value.impl.IntValue;
import tlc2.value.impl.RecordValue;
import tlc2.value.impl.StringValue;
import tlc2.value.impl.TupleValue;
import tlc2.value.impl.Value;
import util.UniqueString;

/**
 * Reads traces for TLC: {@code TraceFile!ReadTraces(file)} is a sequence with the value of each line of JSON.
 * Objects become records, arrays sequences, and numbers are integers. TLC finds this class by its name.
 */
public class TLCOverrides implements ITLCOverrides {
    private final String line;
    private int next;

    public TLCOverrides() {
        this("");
    }

    private TLCOverrides(String line) {
        this.line = line;
    }

    @Override
    @SuppressWarnings("rawtypes")
    public Class[] get() {
        return new Class[] {TLCOverrides.class};
    }

    @TLAPlusOperator(identifier = "ReadTraces", module = "TraceFile")
    public static Value readTraces(StringValue file) throws IOException {
        List<Value> traces = new ArrayList<>();
        for (String line : Files.readAllLines(Paths.get(file.val.toString()), StandardCharsets.UTF_8)) {
            traces.add(new TLCOverrides(line).value());
        }
        return sequence(traces);
    }

    private static Value sequence(List<Value> items) {
        return new TupleValue(items.toArray(new Value[0]));
    }

    private Value value() {
        switch (peek()) {
            case '{':
                return object();
            case '[':
                return array();
            case '"':
                return new StringValue(string());
            case 't':
                return word("true", BoolValue.ValTrue);
            case 'f':
                return word("false", BoolValue.ValFalse);
            default:
                return number();
        }
    }

    private Value object() {
        List<UniqueString> names = new ArrayList<>();
        List<Value> values = new ArrayList<>();
        for (next++; peek() != '}'; skipComma()) {
            names.add(UniqueString.uniqueStringOf(string()));
            expect(':');
            values.add(value());
        }
        next++;
        return new RecordValue(names.toArray(new UniqueString[0]), values.toArray(new Value[0]), false);
    }

    private Value array() {
        List<Value> items = new ArrayList<>();
        for (next++; peek() != ']'; skipComma()) {
            items.add(value());
        }
        next++;
        return sequence(items);
    }

    private Value word(String word, Value value) {
        if (!line.startsWith(word, next)) {
            throw wrong(word);
        }
        next += word.length();
        return value;
    }

    private Value number() {
        int start = next;
        while (next < line.length() && "-0123456789".indexOf(line.charAt(next)) >= 0) {
            next++;
        }
        if (start == next) {
            throw wrong("a value");
        }
        return IntValue.gen(Integer.parseInt(line.substring(start, next)));
    }

    private String string() {
        StringBuilder text = new StringBuilder();
        expect('"');
        while (at() != '"') {
            if (at() != '\\') {
                text.append(line.charAt(next++));
            } else {
                text.append(escaped());
            }
        }
        next++;
        return text.toString();
    }

    private char escaped() {
        next++;
        char letter = line.charAt(next++);
        if (letter != 'u') {
            return "\"\\/".indexOf(letter) >= 0 ? letter : "\b\f\n\r\t".charAt("bfnrt".indexOf(letter));
        }
        next += 4;
        return (char) Integer.parseInt(line.substring(next - 4, next), 16);
    }

    private char at() {
        if (next >= line.length()) {
            throw wrong("more");
        }
        return line.charAt(next);
    }

    private char peek() {
        while (Character.isWhitespace(at())) {
            next++;
        }
        return at();
    }

    private void expect(char due) {
        if (peek() != due) {
            throw wrong("'" + due + "'");
        }
        next++;
    }

    private void skipComma() {
        if (peek() == ',') {
            next++;
        }
    }

    private IllegalArgumentException wrong(String due) {
        return new IllegalArgumentException("column " + (next + 1) + ": " + due + " is expected");
    }
}

import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.avro.Conversions;
import org.apache.avro.Schema;
import org.apache.avro.data.TimeConversions;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.common.header.internals.RecordHeaders;

/**
 * Prints events as the serializer of a Java producer writes them: one a line, the name of its schema and its bytes.
 *
 * <p>Arguments: the URL of Apicurio Registry, and the directory with the schemas. tests/broker/test_real_registry.py
 * compares what it prints with events.txt, but for the ids.
 */
public class WriteEvents {
    static Schema payment;
    static Schema reading;

    static GenericRecord payment(boolean large) {
        GenericRecord owner = new GenericData.Record(payment.getField("card").schema().getField("owner").schema());
        owner.put("score", large ? Float.MAX_VALUE : 0.5f);
        GenericRecord card = new GenericData.Record(payment.getField("card").schema());
        card.put("age", large ? -64 : 31);
        card.put("limit", large ? null : 2500.0);
        card.put("owner", owner);
        Schema kinds = payment.getField("enum").schema();
        GenericRecord row = new GenericData.Record(payment);
        row.put("truth", !large);
        row.put("int", large ? Integer.MIN_VALUE : 63);
        row.put("long", large ? Long.MAX_VALUE : -65L);
        row.put("float", large ? Float.MIN_VALUE : 1.5f);
        row.put("double", large ? -Double.MAX_VALUE : 0.1);
        row.put("string", large ? "\u20ac \ud83d\ude00".repeat(20) : "");
        row.put("javaString", large ? "caf\u00e9" : "shop");
        row.put("bytes", ByteBuffer.wrap(large ? new byte[200] : new byte[] {0, -1}));
        row.put("fixed", new GenericData.Fixed(payment.getField("fixed").schema(), new byte[] {1, 2, 3, 4}));
        row.put("enum", new GenericData.EnumSymbol(kinds, large ? "CREDIT" : "DEBIT"));
        row.put("optional", large ? null : -2.25);
        row.put("union", large ? new GenericData.EnumSymbol(kinds, "CREDIT") : (Object) 7L);
        row.put("array", large ? List.of() : List.of(1L, -1L, 300L));
        row.put("map", large ? Map.of() : Map.of("a", 0.5));
        row.put("decimal", new BigDecimal(large ? "-123456789012345678.90" : "12.34"));
        row.put("fixedDecimal", new BigDecimal(large ? "-0.0001" : "99999999999999.9999"));
        row.put("date", large ? LocalDate.of(1969, 12, 31) : LocalDate.of(2024, 2, 29));
        row.put("timeMillis", LocalTime.of(23, 59, 59, 999_000_000));
        row.put("timeMicros", LocalTime.of(23, 59, 59, 999_999_000));
        row.put("timestampMillis", Instant.parse(large ? "1969-12-31T23:59:59.999Z" : "2024-02-29T12:00:00.001Z"));
        row.put("timestampMicros", large ? null : Instant.parse("2024-02-29T12:00:00.000001Z"));
        row.put("localTimestampMillis", LocalDateTime.of(2024, 2, 29, 12, 0));
        row.put("uuid", UUID.fromString("f81d4fae-7dec-11d0-a765-00a0c91e6bf6"));
        row.put("card", card);
        return row;
    }

    static GenericRecord reading(String id, double value, int whole, Double optional) {
        GenericRecord row = new GenericData.Record(reading);
        row.put("id", id);
        row.put("double", value);
        row.put("float", (float) value);
        row.put("int", whole);
        row.put("long", whole * 4_294_967_296L);
        row.put("optional", optional);
        row.put("note", ByteBuffer.wrap(new byte[whole & 3]));
        row.put("label", value < 0);
        return row;
    }

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[1]);
        payment = new Schema.Parser().parse(Files.readString(folder.resolve("payment.avsc")));
        reading = new Schema.Parser().parse(Files.readString(folder.resolve("reading.avsc")));
        // The serializer writes with this one.
        GenericData data = GenericData.get();
        data.addLogicalTypeConversion(new Conversions.DecimalConversion());
        data.addLogicalTypeConversion(new Conversions.UUIDConversion());
        data.addLogicalTypeConversion(new TimeConversions.DateConversion());
        data.addLogicalTypeConversion(new TimeConversions.TimeMillisConversion());
        data.addLogicalTypeConversion(new TimeConversions.TimeMicrosConversion());
        data.addLogicalTypeConversion(new TimeConversions.TimestampMillisConversion());
        data.addLogicalTypeConversion(new TimeConversions.TimestampMicrosConversion());
        data.addLogicalTypeConversion(new TimeConversions.LocalTimestampMillisConversion());
        List<GenericRecord> rows = Arrays.asList(
                payment(false),
                payment(true),
                reading("r-1", 1.5, 1, 0.25),
                reading("r-2", -0.0, -64, null),
                reading("\u00fc", -1e30, 2_147_483_647, Double.MIN_VALUE),
                reading("", 3.0e-5, -2_147_483_648, -1.0));
        try (AvroKafkaSerializer<GenericRecord> serializer = new AvroKafkaSerializer<>()) {
            serializer.configure(
                    Map.of("apicurio.registry.url", arguments[0], "apicurio.registry.auto-register", true), false);
            for (GenericRecord row : rows) {
                String name = row.getSchema().getName().toLowerCase();
                byte[] bytes = serializer.serialize(name + "s", new RecordHeaders(), row);
                System.out.println(name + " " + HexFormat.of().formatHex(bytes));
            }
        }
    }
}

"""prepare on data as people have it: folders, gzip, ShareGPT, tools, bad
samples; what is kept, and what the report says."""

import contextlib
import gzip
import io
import json
import os
import random
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

import fixtures  # puts scripts/lib on the path
from fixtures import chat, write_folder, write_lines

import megatron
import prepare
import progress
from common import Failure

# ChatML with tool definitions, calls and results, in the manner of Qwen.
TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}"
    "{{ t | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ 'CALL ' + c.function.name + ' ' }}"
    "{{ c.function.arguments | tojson }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}")


class Room(unittest.TestCase):
    def setUp(self):
        self.room = tempfile.TemporaryDirectory()
        self.addCleanup(self.room.cleanup)
        self.prefix = self.path("out/data")
        self.tokens = fixtures.vocabulary()
        self.model = write_folder(self.path("model"))

    def path(self, name):
        return os.path.join(self.room.name, name)

    def lines(self, name, rows):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        return write_lines(self.path(name), rows)

    def prepare(self, *data, prefix=None, **settings):
        text, made = prepare.prepare(
            prepare.Job(self.model, list(data), **settings),
            prefix or self.prefix)
        return text, made

    def sequences(self, *data, **settings):
        self.prepare(*data, **settings)
        return megatron.read(self.prefix)

    def spelled(self, ids, mask=None):
        return "".join(self.tokens[i] for k, i in enumerate(ids)
                       if mask is None or mask[k]).replace(
                           "Ċ", "\n").replace("Ġ", " ")

    def refusal(self, *data, **settings):
        output = io.StringIO()
        with self.assertRaises(Failure) as caught, \
                contextlib.redirect_stderr(output):
            self.prepare(*data, **settings)
        self.assertFalse(os.listdir(self.path("out"))
                         if os.path.isdir(self.path("out")) else [])
        return str(caught.exception), output.getvalue()


class Files(Room):
    def test_files_folders_and_gzip_are_one_data_in_the_order_given(self):
        rows = [{"text": word} for word in
                ("hello", "world", "user", "he", "ld", "or")]
        b = self.lines("folder/b.jsonl", rows[1:2])
        with gzip.open(self.path("folder/a.jsonl.gz"), "wt") as file:
            file.write(json.dumps(rows[0]) + "\n")
        self.lines("folder/ignored.txt", ["no JSON"])
        plain = self.lines("plain", rows[2:4])
        zipped = self.path("named-otherwise")
        with gzip.open(zipped, "wt") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows[4:]))
        found = self.sequences(os.path.dirname(b), plain, zipped)
        self.assertEqual([self.spelled(ids[:-1]) for ids, _ in found],
                         [row["text"] for row in rows])

    def test_a_folder_without_data_and_a_missing_file_are_named(self):
        os.mkdir(self.path("empty"))
        self.assertIn("holds no .jsonl", self.refusal(self.path("empty"))[0])
        self.assertIn("No such file", self.refusal(self.path("nowhere"))[0])

    def test_a_gzip_file_that_is_cut_off_is_named_with_its_line(self):
        with gzip.open(self.path("a.gz"), "wt", 0) as file:
            for _ in range(1000):
                file.write(json.dumps({"text": "hello"}) + "\n")
        with open(self.path("a.gz"), "r+b") as file:
            file.truncate(9000)
        error, _ = self.refusal(self.path("a.gz"))
        self.assertRegex(error, r"a\.gz:\d+: the gzip file is cut off")

    def test_a_json_array_gets_a_hint(self):
        for rows in (["[", '{"text": "a"}', "]"], ['[{"text": "a"}]']):
            error, _ = self.refusal(self.lines("array", rows))
            self.assertRegex(error, "one line of JSON|one JSON array")


class Turns(Room):
    def test_loss_on_last_takes_the_last_turn_of_the_assistant(self):
        data = self.lines("d", [chat("a", "hello", "b", "ld", "c"),
                                {"prompt": "he", "completion": "or"}])
        for template in (fixtures.CHATML, fixtures.GENERATION,
                         fixtures.INSTRUCT):
            write_folder(self.model, template)
            (ids, mask), (_, plain) = self.sequences(data, loss_on="last")
            self.assertEqual(self.spelled(ids, mask).replace(" ", ""),
                             "ld<|im_end|>")
            self.assertEqual(plain, [0, 1, 1])

    def test_prompt_and_completion_may_be_messages(self):
        turns = chat("a", "hello", "b", "ld")["messages"]
        data = self.lines("d", [{"prompt": turns[:3],
                                 "completion": turns[3:]}])
        (ids, mask), = self.sequences(data)
        self.assertEqual(self.spelled(ids, mask), "ld<|im_end|>")
        whole, = self.sequences(self.lines("w", [{"messages": turns}]))
        self.assertEqual(ids, whole[0])

    def test_tool_calls_and_results_are_the_templates(self):
        write_folder(self.model, TOOLS)
        call = {"name": "f", "arguments": {"x": 1}}
        rows = [{"messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "",
             "tool_calls": [{"type": "function", "function": call}]},
            {"role": "tool", "content": "or"},
            {"role": "assistant", "content": "ld"}],
            "tools": [{"name": "f"}]},
            {"conversations": [
                {"from": "human", "value": "hello"},
                {"from": "function_call", "value": json.dumps(call)},
                {"from": "observation", "value": "or"},
                {"from": "gpt", "value": "ld"}],
             "tools": json.dumps([{"name": "f"}])}]
        first, second = self.sequences(self.lines("d", rows))
        self.assertEqual(first, second)
        self.assertEqual(self.spelled(*first),
                         'CALL f {"x": 1}<|im_end|>ld<|im_end|>')
        self.assertIn('{"name": "f"}', self.spelled(first[0]))

    def test_what_a_template_would_leave_out_is_refused(self):
        tool = {"function": {"name": "f", "arguments": {}}}
        for row, word in (
                ({**chat("a", "b"), "tools": [{"name": "f"}]}, "tools"),
                ({"messages": [{"role": "assistant", "content": "",
                                "tool_calls": [tool]}]}, "tool_calls")):
            error, _ = self.refusal(self.lines("d", [row]))
            self.assertIn(f"leaves out {word}", error)

    def test_a_system_field_is_the_first_message(self):
        talk = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
        rows = [{"system": "he", "conversations": talk},
                {"conversations": [{"from": "system", "value": "he"}] + talk}]
        first, second = self.sequences(self.lines("d", rows))
        self.assertEqual(first, second)
        self.assertIn("system\nhe", self.spelled(first[0]))

    def test_two_thousand_turns_cost_what_two_thousand_chats_cost(self):
        turn = ["hello world " * 8, "user world " * 8]
        one = self.lines("one", [chat(*turn * 1000)])
        many = self.lines("many", [chat(*turn)] * 1000)
        self.prepare(one, prefix=self.path("warm/up"))
        spent = []
        for data in (one, many):
            begin = time.process_time()
            self.sequences(data)
            spent.append(time.process_time() - begin)
        self.assertLess(spent[0], 3 * spent[1])


class BadSamples(Room):
    GOOD, BAD = {"text": "hello"}, {"text": 5}

    def test_all_are_counted_and_the_first_are_named(self):
        rows = ([self.GOOD] + [self.BAD] * 3) * 7
        error, said = self.refusal(self.lines("d", rows))
        self.assertIn("d:2: text is not a string; 21 bad samples", error)
        self.assertIn("--skip-bad", error)
        self.assertEqual(said.count("\n"), 10)
        self.assertIn("d:14: text is not a string", said)

    def test_skip_bad_leaves_them_out_and_the_report_counts_them(self):
        data = self.lines("d", [self.GOOD, "{", self.BAD, self.GOOD])
        text, _ = self.prepare(data, skip_bad=True)
        self.assertEqual(len(megatron.read(self.prefix)), 2)
        self.assertRegex(text, r"left out +2  bad samples")
        self.assertIn("d:2: not JSON", text)
        self.assertIn("d:3: text is not a string", text)

    def test_nothing_but_bad_samples_is_refused(self):
        error, _ = self.refusal(self.lines("d", [self.BAD]), skip_bad=True)
        self.assertIn("no data but 1 bad samples", error)


class Workers(Room):
    def test_any_number_of_workers_makes_the_same_files(self):
        rng = random.Random(5)
        rows = [{"text": "hello world " * rng.randrange(30)}
                for _ in range(9000)]
        rows[7777] = {"text": None}
        data = self.lines("d", rows)
        self.assertGreater(os.path.getsize(data), prepare.ALONE_BYTES)
        made = []
        for n in (1, 3):
            prefix = self.path(f"w{n}/data")
            self.prepare(data, prefix=prefix, n_workers=n, skip_bad=True)
            files = {}
            for kind in prepare.MADE:
                with open(f"{prefix}.{kind}", "rb") as file:
                    files[kind] = file.read().replace(prefix.encode(), b"")
            made.append(files)
        self.assertEqual(*made)
        self.assertIn(b"d:7778: text is not a string", made[0]["summary.txt"])


class Kept(Room):
    def test_what_is_there_is_not_made_again(self):
        data = self.lines("d", [chat("a", "hello")])
        text, made = self.prepare(data)
        self.assertTrue(made)
        self.assertEqual(self.prepare(data), (text, False))
        copied = self.lines("other-name", [chat("a", "hello")])
        self.assertEqual(self.prepare(copied)[1], False)

    def test_it_is_made_again_when_anything_changes(self):
        data = self.lines("d", [chat("a", "hello")])
        self.prepare(data)

        def assert_made(**settings):
            self.assertTrue(self.prepare(data, **settings)[1])
            self.assertFalse(self.prepare(data, **settings)[1])
        assert_made(loss_on="all")
        assert_made()
        self.lines("d", [chat("a", "world")])
        assert_made()
        write_folder(self.model, fixtures.GENERATION)
        assert_made()
        write_folder(self.model, fixtures.GENERATION, add_bos_token=True)
        assert_made()
        with open(f"{self.prefix}.bin", "ab") as file:
            file.write(b"1234")
        assert_made()
        os.unlink(f"{self.prefix}.idx")
        assert_made()


class Report(Room):
    def test_it_tells_what_limits_would_cut_and_the_longest(self):
        rows = [{"text": "hello " * n} for n in
                (1100, 5000, *range(10), 2100, 7)]
        text, _ = self.prepare(self.lines("d", rows))
        lengths = [len(ids) for ids, _ in megatron.read(self.prefix)]
        masks = [mask for _, mask in megatron.read(self.prefix)]
        for limit in (1024, 2048, 4096):
            cut = sum(max(n - limit, 0) for n in lengths)
            rows_cut = sum(n > limit for n in lengths)
            targets = sum(sum(mask[limit:]) for mask in masks)
            self.assertRegex(text, rf"  {limit:,} +{cut:,} \(.*%\) +"
                             rf"{targets:,} \(.*%\) +{rows_cut}\n")
        named = [line.split() for line in
                 text.partition("longest (tokens)")[2].splitlines() if line]
        self.assertEqual(len(named), 10)
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        self.assertEqual([(n, where.rpartition(":")[2]) for n, where in named],
                         [(f"{lengths[i]:,}", str(i + 1))
                          for i in order[:10]])

    def test_the_picture_is_well_formed(self):
        self.prepare(self.lines("d", [{"text": "hello " * n}
                                      for n in (0, 3, 900)]))
        root = xml.etree.ElementTree.parse(
            f"{self.prefix}.lengths.svg").getroot()
        self.assertTrue(root.tag.endswith("svg"))
        heights = [float(r.get("height")) for r in root.iter()
                   if r.tag.endswith("rect") and r.get("class") == "tokens"]
        self.assertGreater(max(heights), 200)


class ProgressBar(unittest.TestCase):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def test_a_terminal_gets_a_bar_and_a_file_gets_lines(self):
        for stream in (io.StringIO(), self.Terminal()):
            shown = progress.Progress("prepare", 1000, stream)
            shown.show(100, 5)      # too early
            self.assertEqual(stream.getvalue(), "")
            shown.begin -= 30
            shown.next = 0
            shown.show(250, 12)
            shown.show(300, 13)     # too soon after
            shown.clear()
            text = stream.getvalue()
            self.assertEqual(text.count("%"), 1)
            self.assertIn(" 25 %  12 samples", text)
            self.assertIn("1:30 left", text)
            self.assertEqual("\r" in text, stream.isatty())


if __name__ == "__main__":
    sys.exit(unittest.main())

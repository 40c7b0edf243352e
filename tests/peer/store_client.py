#!/usr/bin/env python3
"""PyTorch's own TCPStore client finds in our store the server that it knows: every call it has."""
import os
import subprocess
import threading
import unittest
from datetime import timedelta

from peer_python import BUILD

from torch.distributed import PrefixStore, TCPStore

PATIENCE = timedelta(seconds=60)


class OurServer:
    name = "accel"

    def __init__(self):
        self.process = subprocess.Popen([os.path.join(BUILD, "tests/store_host")], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.port = int(self.process.stdout.readline())

    def close(self):
        self.process.communicate()


class TheirServer:
    """PyTorch's own server: what a case expects must hold there, too, or the case is wrong."""
    name = "torch"

    def __init__(self):
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
        self.port = self.store.port

    def close(self):
        del self.store


class Calls:
    def setUp(self):
        self.server = self.Server()
        self.addCleanup(self.server.close)
        self.store = self.connect()

    def connect(self, timeout=PATIENCE):
        return TCPStore("127.0.0.1", self.server.port, is_master=False, timeout=timeout)

    def test_set_get(self):
        self.store.set("key", b"\x00bytes\xff")
        self.assertEqual(self.store.get("key"), b"\x00bytes\xff")

    def test_get_waits_for_another_client(self):
        other = self.connect()
        timer = threading.Timer(0.2, lambda: other.set("late", "value"))
        timer.start()
        self.assertEqual(self.store.get("late"), b"value")
        timer.join()

    def test_get_of_an_absent_key_times_out_and_the_client_goes_on(self):
        store = self.connect()
        # Only now: PyTorch's own server takes up to 5 s at times to answer a client that connects.
        store.set_timeout(timedelta(milliseconds=300))
        with self.assertRaisesRegex(Exception, "(?i)time"):
            store.get("never")
        store.set("after", "1")
        store.set_timeout(PATIENCE)
        self.assertEqual(store.get("after"), b"1")

    def test_wait_for_many(self):
        other = self.connect()
        for i in range(50):
            other.set(f"k{i}", "v")
        self.store.wait([f"k{i}" for i in range(50)])
        with self.assertRaises(Exception):
            self.store.wait(["k1", "absent"], timedelta(milliseconds=300))
        self.assertTrue(self.store.check(["k1"]))

    def test_add(self):
        self.assertEqual(self.store.add("n", 3), 3)
        self.assertEqual(self.connect().add("n", -5), -2)
        self.assertEqual(self.store.get("n"), b"-2")

    def test_compare_set(self):
        self.assertEqual(self.store.compare_set("k", "expected", "new"), b"expected")
        self.assertFalse(self.store.check(["k"]))
        self.assertEqual(self.store.compare_set("k", "", "first"), b"first")
        self.assertEqual(self.store.compare_set("k", "other", "second"), b"first")
        self.assertEqual(self.store.compare_set("k", "first", "second"), b"second")

    def test_check(self):
        self.store.set("a", "1")
        self.assertTrue(self.store.check(["a"]))
        self.assertFalse(self.store.check(["a", "b"]))

    def test_delete_and_count(self):
        before = self.store.num_keys()
        self.store.set("a", "1")
        self.assertEqual(self.store.num_keys(), before + 1)
        self.assertTrue(self.store.delete_key("a"))
        self.assertFalse(self.store.delete_key("a"))
        self.assertEqual(self.store.num_keys(), before)

    def test_append(self):
        self.store.append("log", "one,")
        self.connect().append("log", "two")
        self.assertEqual(self.store.get("log"), b"one,two")

    def test_multi_get_and_set(self):
        self.store.multi_set(["a", "b"], ["1", "2"])
        self.assertEqual(self.store.multi_get(["b", "a"]), [b"2", b"1"])

    def test_queue(self):
        self.store.queue_push("q", "one")
        self.store.queue_push("q", "two")
        self.assertEqual(self.store.queue_len("q"), 2)
        self.assertEqual(self.store.queue_pop("q"), b"one")
        self.assertEqual(self.store.queue_pop("q"), b"two")
        self.assertEqual(self.store.queue_len("q"), 0)
        with self.assertRaises(Exception):
            self.store.queue_pop("q", False)

    def test_queue_pop_waits_for_another_client(self):
        other = self.connect()
        timer = threading.Timer(0.2, lambda: other.queue_push("q", "late"))
        timer.start()
        self.assertEqual(self.store.queue_pop("q"), b"late")
        timer.join()

    def test_list_keys(self):
        self.store.set("a", "1")
        self.store.set("b", "1")
        self.assertLessEqual({"a", "b"}, set(self.store.list_keys()))

    def test_prefix_and_clone(self):
        prefixed = PrefixStore("group", self.store)
        prefixed.set("key", "value")
        self.assertEqual(self.store.get("group/key"), b"value")
        self.assertEqual(self.store.clone().get("group/key"), b"value")

    def test_a_value_of_four_mebibytes(self):
        value = os.urandom(4 << 20)
        self.store.set("big", value)
        self.assertEqual(self.connect().get("big"), value)

    def test_a_barrier_of_many_threads(self):
        count = 32
        failures = []

        def worker():
            try:
                store = self.connect()
                if store.add("arrived", 1) == count:
                    store.set("all", "1")
                store.wait(["all"], PATIENCE)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=worker) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(self.store.get("arrived"), str(count).encode())


class OnOurServer(Calls, unittest.TestCase):
    Server = OurServer

    def test_clients_are_cut_when_the_server_ends(self):
        self.server.close()
        with self.assertRaises(Exception):
            self.store.get("key")


class OnTheirServer(Calls, unittest.TestCase):
    Server = TheirServer


if __name__ == "__main__":
    unittest.main()

"""Trains with TensorFlow's ParameterServerStrategy: asynchronous workers and one parameter server.

Without TF_CONFIG this is the coordinator (TensorFlow's `chief`): it starts the workers and the server as processes of
this script, each with its TF_CONFIG, and ends them.
"""

import json
import os
import socket
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf

from workload import Clock, arguments, load, report


def addresses(number):
    """Addresses of this host that nobody uses."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    found = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return found


def start(cluster, kind, index):
    """A worker or a server: this script with its task."""
    task = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
    return subprocess.Popen([sys.executable] + sys.argv, env=dict(os.environ, TF_CONFIG=task), stdout=sys.stderr)


def serve():
    """The life of a worker or a server: it does what the coordinator wants, until it is ended."""
    task = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        task.cluster_spec(), job_name=task.task_type, task_index=task.task_id, protocol="grpc"
    )
    server.join()


class Network:
    """The layers of Paceline's `mlp` and `lenet`."""

    def __init__(self, name, shape, classes):
        height, width, channels = shape
        self.name, self.layers = name, []
        if name == "mlp":
            for inputs, outputs in [(height * width * channels, 256), (256, 128), (128, classes)]:
                self.add((inputs, outputs), inputs)
        else:
            flat = 64 * (height // 4) * (width // 4)
            self.add((5, 5, channels, 32), 25 * channels)
            self.add((5, 5, 32, 64), 25 * 32)
            self.add((flat, 512), flat)
            self.add((512, classes), 512)

    def add(self, shape, inputs):
        # As PyTorch starts its layers.
        bound = inputs**-0.5
        weight = tf.Variable(tf.random.uniform(shape, -bound, bound))
        bias = tf.Variable(tf.random.uniform(shape[-1:], -bound, bound))
        self.layers.append((weight, bias))

    @property
    def variables(self):
        return [variable for layer in self.layers for variable in layer]

    def __call__(self, x):
        last = len(self.layers) - 1
        for i, (weight, bias) in enumerate(self.layers):
            if len(weight.shape) == 4:
                x = tf.nn.max_pool2d(tf.nn.conv2d(x, weight, 1, "SAME") + bias, 2, 2, "VALID")
            else:
                x = tf.reshape(x, (-1, weight.shape[0])) @ weight + bias
            x = x if i == last else tf.nn.relu(x)
        return x


def loss_of(answers, y):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=answers)


def train(args):
    """The coordinator: schedules steps, which whichever worker is free makes."""
    task = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(task)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    tf.random.set_seed(args.seed)
    x, y = load(args.data, "train")
    with strategy.scope():
        network = Network(args.model, x.shape[1:], int(y.max()) + 1)
        velocities = [tf.Variable(tf.zeros_like(variable)) for variable in network.variables]

    def dataset(_context=None):
        # Each worker reads and shuffles by itself.
        samples = tf.data.Dataset.from_tensor_slices(load(args.data, "train"))
        return samples.shuffle(len(y)).repeat().batch(args.batch, drop_remainder=True).prefetch(2)

    data = iter(coordinator.create_per_worker_dataset(tf.function(
        lambda: strategy.distribute_datasets_from_function(dataset)
    )))

    @tf.function
    def step(data):
        def replica(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(loss_of(network(x), y))
            gradients = tape.gradient(loss, network.variables)
            for variable, velocity, gradient in zip(network.variables, velocities, gradients):
                # On the server, where the variable lies.
                tf.raw_ops.ResourceApplyMomentum(
                    var=variable.handle, accum=velocity.handle, lr=args.lr, grad=gradient,
                    momentum=args.momentum, use_locking=True,
                )
            return loss
        return strategy.run(replica, args=next(data))

    for _ in range(args.workers):
        coordinator.schedule(step, args=(data,))
    coordinator.join()
    clock = Clock()
    for _ in range((args.steps - 1) * args.workers):
        loss = coordinator.schedule(step, args=(data,))
    coordinator.join()
    clock.stop()

    x, y = load(args.data, "test")
    answers = tf.concat([network(x[i : i + 500]) for i in range(0, len(y), 500)], 0)
    right = tf.reduce_mean(tf.cast(tf.argmax(answers, 1) == y, tf.float32))
    report(args, clock, loss.fetch(), tf.reduce_mean(loss_of(answers, y)), right)


def main():
    args = arguments()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    if "TF_CONFIG" in os.environ:
        return serve()
    free = addresses(args.workers + 2)
    cluster = {"chief": free[:1], "ps": free[1:2], "worker": free[2:]}
    others = [start(cluster, "ps", 0)] + [start(cluster, "worker", i) for i in range(args.workers)]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    try:
        train(args)
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    main()

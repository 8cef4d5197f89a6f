"""What a Python gRPC client sees of the real model."""

import concurrent.futures

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase)
from grpc_status import rpc_status
from nibble.v1 import nibble_pb2 as pb

QUESTION = "What is the capital of France, and what is it known for?"


def chat(text, **fields):
    return pb.GenerateRequest(
        chat=pb.Chat(messages=[pb.ChatMessage(role="user", content=text)]),
        **fields)


def greedy(tokens):
    return dict(sampling=pb.Sampling(temperature=0),
                stopping=pb.Stopping(max_new_tokens=tokens))


def joined(chunks):
    chunks = list(chunks)
    assert chunks[-1].HasField("finish")
    return "".join(chunk.text for chunk in chunks), chunks


def test_answers_a_question(stubs):
    answer = stubs.generation.Generate(chat(QUESTION, **greedy(48)))
    output = answer.outputs[0]
    assert "Paris" in output.text
    assert output.finish.usage.generated_tokens > 0
    assert output.finish.usage.prompt_tokens > 10
    assert output.finish.timings.first_token_us > 0
    assert answer.request_id


def test_joined_chunks_equal_the_unary_text(stubs):
    for request in [
            chat(QUESTION, **greedy(60)),
            pb.GenerateRequest(text="你好，世界。Émile 🦙 said", **greedy(40)),
            pb.GenerateRequest(
                text="Once upon a time",
                sampling=pb.Sampling(temperature=1.2, seed=7, top_p=0.9),
                stopping=pb.Stopping(max_new_tokens=60)),
            pb.GenerateRequest(text="1, 2, 3,",
                               sampling=pb.Sampling(temperature=0),
                               stopping=pb.Stopping(max_new_tokens=60,
                                                    stop=["7", "12"])),
    ]:
        unary = stubs.generation.Generate(request)
        text, chunks = joined(stubs.generation.GenerateStream(request))
        assert text == unary.outputs[0].text
        assert (chunks[-1].finish.reason == unary.outputs[0].finish.reason)
        assert (chunks[-1].finish.usage.generated_tokens ==
                unary.outputs[0].finish.usage.generated_tokens)


def test_a_stop_string_is_cut_and_named(stubs):
    answer = stubs.generation.Generate(
        pb.GenerateRequest(text="1, 2, 3, 4, 5, 6,",
                           sampling=pb.Sampling(temperature=0),
                           stopping=pb.Stopping(max_new_tokens=60,
                                                stop=["9"])))
    output = answer.outputs[0]
    assert "9" not in output.text
    assert output.finish.reason == pb.FINISH_REASON_STOP_STRING
    assert output.finish.stop_string == "9"


def test_sixty_four_streams_give_what_each_gives_alone(smollm):
    """Greedy and seeded text does not depend on who shares the steps."""
    from nibble.v1 import nibble_pb2_grpc
    requests = []
    for i in range(64):
        sampling = (pb.Sampling(temperature=0) if i % 2 == 0 else pb.Sampling(
            temperature=0.9, top_p=0.95, top_k=50, seed=1000 + i))
        requests.append(
            pb.GenerateRequest(
                text=f"Story number {i}: " + "word " * (i % 9),
                sampling=sampling,
                stopping=pb.Stopping(max_new_tokens=12 + i % 7,
                                     ignore_eos=True)))
    with grpc.insecure_channel(smollm.target) as channel:
        stub = nibble_pb2_grpc.GenerationStub(channel)
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            together = list(
                pool.map(lambda r: joined(stub.GenerateStream(r))[0],
                         requests))
        for request, text in zip(requests, together):
            assert stub.Generate(request).outputs[0].text == text


def test_logprobs_echo_and_bytes(stubs):
    request = pb.GenerateRequest(text="The sky is",
                                 response=pb.ResponseOptions(
                                     logprobs=True,
                                     top_logprobs=3,
                                     prompt_logprobs=2,
                                     echo=True,
                                     token_ids=True,
                                     token_bytes=True),
                                 **greedy(5))
    answer = stubs.generation.Generate(request)
    output = answer.outputs[0]
    assert output.text.startswith("The sky is")
    assert len(output.tokens) == output.finish.usage.generated_tokens
    assert b"".join(t.token_bytes for t in output.tokens).decode() == (
        output.text[len("The sky is"):])
    for token in output.tokens:
        assert token.logprob <= 0 and token.rank == 1
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].id == token.id
    prompt = answer.prompt.prompt_tokens
    assert len(prompt) == answer.prompt.tokens
    assert not prompt[0].HasField("logprob")
    assert all(token.HasField("logprob") for token in prompt[1:])


def test_several_outputs_have_their_own_seeds(stubs):
    answer = stubs.generation.Generate(
        pb.GenerateRequest(text="My favourite animal is",
                           sampling=pb.Sampling(temperature=1, seed=5, n=3),
                           stopping=pb.Stopping(max_new_tokens=12)))
    assert [output.index for output in answer.outputs] == [0, 1, 2]
    assert [output.finish.seed for output in answer.outputs] == [5, 6, 7]
    for output in answer.outputs:
        single = stubs.generation.Generate(
            pb.GenerateRequest(
                text="My favourite animal is",
                sampling=pb.Sampling(temperature=1, seed=output.finish.seed),
                stopping=pb.Stopping(max_new_tokens=12)))
        assert single.outputs[0].text == output.text


def test_a_batch_answers_each_request(stubs):
    requests = [
        pb.GenerateRequest(text="One", **greedy(4)),
        pb.GenerateRequest(text="x", sampling=pb.Sampling(top_p=7)),
        pb.GenerateRequest(text="Two", **greedy(6)),
    ]
    text = {0: "", 2: ""}
    errors = {}
    for chunk in stubs.generation.GenerateBatch(
            pb.GenerateBatchRequest(requests=requests)):
        if chunk.HasField("error"):
            errors[chunk.request_index] = chunk.error
        else:
            text[chunk.request_index] += chunk.chunk.text
    assert list(errors) == [1]
    assert errors[1].code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "top_p" in errors[1].message
    for index in text:
        assert text[index] == stubs.generation.Generate(
            requests[index]).outputs[0].text


def test_tokenize_and_detokenize_are_inverse(stubs):
    for text in ["Hello, world!", "don't  stop", "全角 🦙👩‍👩‍👧‍👦 é", "\n\t x = 1234;"]:
        tokens = stubs.generation.Tokenize(
            pb.TokenizeRequest(text=text, details=True))
        assert len(tokens.details) == len(tokens.ids)
        data = text.encode()
        for detail in tokens.details:
            assert data[detail.begin:detail.end] == detail.token_bytes
        back = stubs.generation.Detokenize(
            pb.DetokenizeRequest(ids=tokens.ids))
        assert back.text == text and back.text_bytes == data


def test_errors_name_the_field(stubs):

    def refusal(request):
        with pytest.raises(grpc.RpcError) as error:
            stubs.generation.Generate(request)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        status = rpc_status.from_call(error.value)
        return error.value.details(), {
            detail.type_url.removeprefix("type.googleapis.com/"): detail.value
            for detail in status.details
        }

    def violation(request):
        message, details = refusal(request)
        assert {"google.rpc.ErrorInfo", "google.rpc.BadRequest"} <= set(details)
        return message

    for field, sampling in {
            "temperature": pb.Sampling(temperature=-1),
            "top_p": pb.Sampling(top_p=0),
            "repetition_penalty": pb.Sampling(repetition_penalty=0),
            "logit_bias": pb.Sampling(logit_bias={10**6: 1.0}),
            "sampling.n": pb.Sampling(n=0),
    }.items():
        assert field in violation(pb.GenerateRequest(text="x",
                                                     sampling=sampling))
    assert "stop" in violation(
        pb.GenerateRequest(text="x", stopping=pb.Stopping(stop=[""])))
    assert "token_ids" in violation(
        pb.GenerateRequest(token_ids=pb.TokenIds(ids=[-1])))
    message, details = refusal(
        pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5] * 9000)))
    assert "9000" in message and "8192" in message
    info = details["google.rpc.ErrorInfo"]
    assert b"n_prompt" in info and b"n_ctx" in info


def test_text_that_is_not_utf8_is_refused_by_name(smollm):
    # Field 2 (text), two bytes, not UTF-8: what a careless client sends.
    bad = b"\x12\x02\xff\xfe"
    with grpc.insecure_channel(smollm.target) as channel:
        call = channel.unary_unary("/nibble.v1.Generation/Generate")
        with pytest.raises(grpc.RpcError) as error:
            call(bad)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "text" in error.value.details()
        with pytest.raises(grpc.RpcError) as error:
            call(b"\xff\xff\xff")
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_models_reflection_and_what_is_not_built(smollm, stubs):
    (model,) = stubs.models.ListModels(pb.ListModelsRequest()).models
    assert model.model == "smollm2"
    assert model.architecture == "llama"
    assert model.format == "q4_1"
    assert model.context_length == 8192
    assert model.chat_template.available
    assert model.state == pb.MODEL_STATE_SERVING
    assert stubs.models.GetModel(
        pb.GetModelRequest(model="smollm2")).plan == model.plan
    with pytest.raises(grpc.RpcError) as error:
        stubs.models.GetModel(pb.GetModelRequest(model="nope"))
    assert error.value.code() == grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as error:
        stubs.models.LoadModel(pb.LoadModelRequest(model="a", path="b"))
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "LoadModel" in error.value.details()
    with grpc.insecure_channel(smollm.target) as channel:
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert {"nibble.v1.Generation", "nibble.v1.Models",
            "grpc.health.v1.Health"} <= set(services)

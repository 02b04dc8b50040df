"""Writes tests/data/chat.json: what Python's jinja2 makes of chat templates, set up as Hugging Face transformers does it.

usage: python tests/make_chat_data.py        needs jinja2, writes the file beside this one

The templates are those of published model families in short form, and small ones that try one rule of the language each.
"""
import json
import os
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
NOW = 1721995200                                               # 2024-07-26, 12:00 UTC: the same day nearly everywhere


class Generation(jinja2.ext.Extension):
    """{% generation %} of transformers: its body, as it is."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.utcfromtimestamp(NOW).strftime(form)
    return env


# ---- Families --------------------------------------------------------------------------------------------------------

FAMILIES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
              "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "smollm2": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
               "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
               "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "qwen2.5": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "qwen3": """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "llama2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
              "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
              "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
              "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
              "{% if loop.index0 == 0 and system_message != false %}"
              "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
              "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
              "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
              "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}"
              "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}"
              "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "llama3.2": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral": "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
               "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
               "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
               "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
               "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}",
    "mistral-v3": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- This block checks for alternating user/assistant messages, skipping tool calling messages #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}{{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
             "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
             "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
             "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
    "gemma3": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
""",
    "phi3": "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}"
            "{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
            "{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "deepseek-v2": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ bos_token }}"
                   "{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\n\n' }}"
                   "{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}"
                   "{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}{% endif %}{% endfor %}"
                   "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
    "deepseek-r1": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
                   "{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}"
                   "{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}"
                   "{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}"
                   "{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}"
                   "{%- if ns.is_tool %}{{'<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>'}}{%- set ns.is_tool = false -%}"
                   "{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
                   "{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endif %}{%- endfor -%}"
                   "{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜>'}}{% endif %}",
    "command-r": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
                 "{% elif false == true %}{% set loop_messages = messages %}{% set system_message = 'You are Command-R.' %}"
                 "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
                 "{% if system_message != false %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}{% endif %}"
                 "{% for message in loop_messages %}{% set content = message['content'] %}{% if message['role'] == 'user' %}"
                 "{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% elif message['role'] == 'assistant' %}"
                 "{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'  + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}"
                 "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
    "granite": """{%- if messages[0]['role'] == 'system' %}
     {%- set system_message = messages[0]['content'] %}
     {%- set loop_messages = messages[1:] %}
 {%- else %}
     {%- set system_message = "Knowledge Cutoff Date: April 2024.\\nToday's Date: " + strftime_now('%B %d, %Y') + ".\\nYou are Granite." %}
     {%- set loop_messages = messages %}
 {%- endif %}
 {{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
 {%- for message in loop_messages %}
     {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
     {%- if loop.last and add_generation_prompt %}
             {{- '<|start_of_role|>assistant<|end_of_role|>' }}
     {%- endif %}
 {%- endfor %}""",
    "olmo2": "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + '\n' }}"
             "{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'assistant' %}"
             "{% if not loop.last %}{{ '<|assistant|>\n'  + message['content'] + eos_token + '\n' }}"
             "{% else %}{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}{% endif %}"
             "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}",
    "vicuna": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
              "{% for message in messages -%}{% if message.role == 'system' %}{{ message.content ~ ' ' }}{% elif message.role == 'user' -%}"
              "{{ 'USER: ' ~ message.content ~ ' ' }}{% else %}{{ 'ASSISTANT: ' ~ message.content ~ eos_token }}{%- endif %}{%- endfor %}"
              "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    "macro": """{%- macro render(role, content, end='<|im_end|>') -%}
<|im_start|>{{ role }}
{{ content | trim }}{{ end }}
{%- endmacro -%}
{%- macro tree(x, level=0) -%}
    {%- if x is mapping -%}{%- for k, v in x.items() -%}{{ k }}={{ tree(v, level + 1) }};{%- endfor -%}
    {%- elif x is sequence and x is not string -%}[{%- for v in x -%}{{ tree(v, level=level + 1) }}{{ ',' if not loop.last }}{%- endfor -%}]
    {%- else -%}{{ level }}:{{ x }}{%- endif -%}
{%- endmacro -%}
{% for m in messages %}
{{ render(m.role, m.content) if m.role != 'assistant' else render(m.role, content=m.content, end=eos_token) }}
{% endfor %}
{{ tree({'a': [1, 2, {'b': 'c'}], 'd': none}) }}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "generation": """{% for m in messages %}
{% if m.role == 'assistant' %}
{% generation %}
{{ m.content }}{{ eos_token }}
{% endgeneration %}
{% else %}
[{{ m.role | upper }}] {{ m.content }}
{% endif %}
{% endfor %}
""",
}

TALKS = [
    [("user", "Hello")],
    [("system", " You are brief. "), ("user", "Hi, who are you?\n"), ("assistant", " <think>\nhm\n</think>\n\nAn assistant. "), ("user", "  What's 2 > 1 & 'so' \"on\"? größe 漢字 🦙")],
    [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")],
    [("user", ""), ("assistant", ""), ("user", "x")],
    [("user", "a"), ("user", "b")],
    [("assistant", "first")],
]

# ---- One rule each ---------------------------------------------------------------------------------------------------

VARIABLES = {
    "n": 7, "x": 2.5, "yes": True, "no": False, "nothing": None, "text": "  Hello, wide World  ", "word": "größe漢🦙", "empty": "",
    "numbers": [3, 1, 2], "words": ["b", "a", "C"], "dict": {"a": 1, "b": [1, 2], "c": {"d": "e"}}, "none_list": [],
    "people": [{"name": "Ann", "age": 3, "tags": ["x"]}, {"name": "Bob", "age": 5}, {"name": "Cy", "age": 3, "tags": []}],
    "lines": "one\ntwo\n\nthree\n", "quoted": "it's \"so\" \\ \t\n",
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4
7 // 2 ~ '|' ~ -7 // 2 ~ '|' ~ 7 % 3 ~ '|' ~ -7 % 3 ~ '|' ~ 7 % -3
7 / 2
6 / 2
x + 1
x * n
-n
- n + 3
+n
1.0
1e3
0.1 + 0.2
1e16
1.5e-7
123456789.125
2.5 // 1
-2.5 % 2
'a' + 'b' * 3
3 * 'ab'
[1] + [2, 3]
[0] * 3
(1, 2)
(1,)
()
1, 'a'
[1, 2.0, 'a', none, true, {'k': [1]}]
{'a': 1, "b": "it's", 'c': 'say "x"', 'd': 'both \' and "'}
{'a': 1, 'a': 2}
'a' ~ 1 ~ none ~ true ~ 2.0
1 == 1.0
true == 1
'1' == 1
none == false
[1, 2] == [1, 2]
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
1 < 2 < 3
1 < 3 < 2
'a' < 'b'
[1, 2] < [1, 3]
n >= 7 and n <= 7
n != 7 or no
not no
not no and no
not (no and no)
yes and 'x'
no or 'y'
empty or none_list or 'z'
1 in numbers
9 not in numbers
'wide' in text
'a' in dict
not 'q' in dict
'yes' if yes else 'no'
'yes' if no
('a' if no else 'b' if no else 'c') + 'd'
numbers[0] ~ numbers[-1] ~ numbers[5] ~ '|'
numbers[1:] ~ numbers[:-1] ~ numbers[::-1] ~ numbers[::2] ~ numbers[-2:] ~ numbers[5:] ~ numbers[2:0:-1]
word[0] ~ word[-1] ~ word[1:3] ~ word[::-1] ~ word[5:7] ~ word[-100:2] ~ word[10:]
'abc'[1]
dict.a ~ dict['b'][1] ~ dict.c.d ~ dict.zz ~ dict['zz']
people[0].name ~ people[1]['age']
dict.b.0
dict.get('a') ~ dict.get('q') ~ dict.get('q', 'w')
dict.items() | list
dict.keys() | list
dict.values() | list
dict | items | list
dict | list
dict | length ~ numbers | length ~ word | length ~ empty | count
undefined_thing
undefined_thing is defined
undefined_thing.x is defined
undefined_thing | default('d')
empty | default('d')
empty | default('d', true)
nothing | d('x') ~ nothing | d('y', boolean=true)
text | trim ~ '|'
text.strip() ~ '|' ~ text.lstrip() ~ '|' ~ text.rstrip() ~ '|'
'xxaxbxx'.strip('x') ~ '|' ~ 'xyaxyb'.lstrip('yx') ~ '|' ~ 'a\n\n'.rstrip('\n')
'漢a漢'.strip('漢') ~ 'éaé' | trim('é')
'\u00a0a\u2003' | trim
text | upper ~ text.lower() ~ text | capitalize ~ 'hello wOrld x-y' | title ~ 'ab cd'.title() ~ 'aB'.capitalize()
'a,b,,c'.split(',') ~ 'a  b c '.split() ~ 'a,b,c'.split(',', 1) ~ 'abc'.split('x') ~ ''.split(',') ~ ''.split()
'a b c d'.split(none, 2)
'a,b,c'.rsplit(',', 1)
'</think>x</think>y'.split('</think>')[-1]
lines.splitlines() ~ lines.split('\n')
'abc'.startswith('ab') ~ 'abc'.endswith('bc') ~ 'abc'.startswith(('x', 'a')) ~ 'abc'.endswith('')
'banana'.replace('an', 'AN') ~ 'banana'.replace('a', '', 1) ~ 'aé' | replace('', '-') ~ text | replace('l', 'L')
'banana'.find('n') ~ 'größe'.find('ß') ~ 'a'.find('z') ~ 'banana'.rfind('n') ~ 'banana'.count('an')
', '.join(words) ~ numbers | join('-') ~ numbers | join ~ people | join('+', attribute='name')
'a.b'.removeprefix('a') ~ 'a.b'.removesuffix('b')
words | first ~ words | last ~ none_list | first ~ 'ab' | list ~ word | last
words | reverse | list
'abc' | reverse
people | map(attribute='name') | list
people | map(attribute='tags', default='-') | list
['a', ' b '] | map('trim') | map('upper') | join(',')
['1', '2'] | map('int') | list
people | selectattr('age', 'equalto', 3) | map(attribute='name') | join('+')
people | selectattr('tags') | list | length
people | selectattr('tags', 'defined') | list | length
people | rejectattr('age', '>', 4) | map(attribute='name') | list
people | selectattr('name', 'in', ['Bob', 'Cy']) | map(attribute='age') | list
[1, 2, 3, 4] | select('odd') | list ~ [1, 2, 3, 4] | reject('divisibleby', 2) | list ~ [0, 1] | select | list
dict | tojson
dict | tojson(indent=2)
quoted | tojson ~ word | tojson ~ [1.5, none, true, {}] | tojson ~ [] | tojson(indent=4)
quoted
[quoted]
numbers | string ~ 5 | string
'12' | int ~ 'x' | int ~ '3.7' | int ~ 'x' | int(9) ~ 3.9 | int ~ '2.5' | float ~ 'z' | float
' 42 ' | int
n is odd ~ n is even ~ n is divisibleby(7) ~ n is divisibleby 2
n is number ~ x is float ~ n is integer ~ yes is boolean ~ yes is number ~ yes is integer
text is string ~ dict is mapping ~ numbers is iterable ~ text is iterable ~ n is iterable ~ dict is sequence
nothing is none ~ nothing is not none ~ none is none ~ undefined_thing is none
yes is true ~ no is false ~ n is true
n is eq 7 ~ n is ne 7 ~ n is gt 3 ~ n is lt(3) ~ n is ge 7 ~ n is le 6 ~ n is sameas 7 ~ 1 is in [1, 2]
n is not defined or n > 3
undefined_thing is defined and undefined_thing.x
range(3) | list ~ range(2, 8, 3) | list ~ range(3, 0, -1) | list ~ range(0) | list
namespace(a=1).a
'é\x41\u00e9\t\'"\\' ~ "\"'"
'a' 'b' "c"
'\d\n'
n|string + 'x'
-n|string
(1 if yes else 2) + 1
numbers|length - 1
(text|trim)[0:5]
[1, 2,]
{'a': 1,}
messages | length ~ messages[0].role ~ messages[0]['content'] ~ messages[-1].content
messages | map(attribute='role') | join(',')
messages[0]
strftime_now('%Y-%m-%d') ~ strftime_now('%d %B, %a %%')
loop is defined
raise_exception is defined
caller is defined
none_list | length == 0
dict.b | length > 1
1 > 2 | default(3)
'x' is string and 'y' is string
'%' in '50%'
"}}" ~ '%}'
{'a': {'b': 1}}.a.b
not dict is mapping
dict['c']['d']
text.split(',')[1].strip().split(' ')[0]
[[1, [2, 3]], [4]] | string
[1,2,3][1:][0]
'abc'[::-1][0]
(numbers)[0]
undefined_thing == undefined_other
undefined_thing in numbers
'a' in undefined_thing
undefined_thing ~ 'x'
undefined_thing | length
undefined_thing or 'fallback'
none | string
true and none
1_000 + 1
""".strip("\n").split("\n")

STATEMENTS = [
    "{% if no %}a{% elif yes %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif no %}b{% elif none_list %}x{% else %}c{% endif %}",
    "{% for a in numbers %}{{ loop.index }}/{{ loop.length }}:{{ a }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for a in numbers %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }} {% endfor %}",
    "{% for a in numbers %}{{ loop.previtem }}<{{ a }}<{{ loop.nextitem }} {% endfor %}",
    "{% for a in numbers %}{{ loop.cycle('odd', 'even') }} {% endfor %}",
    "{% for a in none_list %}x{% else %}empty{% endfor %}",
    "{% for a in undefined_thing %}x{% else %}empty{% endfor %}",
    "{% for a in numbers if a > 1 %}{{ loop.index }}{{ a }}{% else %}none{% endfor %}",
    "{% for a in numbers if a > 9 %}{{ a }}{% else %}none{% endfor %}",
    "{% for k, v in dict.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in dict %}{{ k }}{% endfor %}{% for (k, v) in dict | items %}{{ k }}{% endfor %}",
    "{% for a, b in [[1, 2], (3, 4)] %}{{ a + b }} {% endfor %}",
    "{% for c in 'aé漢' %}[{{ c }}]{% endfor %}",
    "{% for a in 1, 2, 3 %}{{ a }}{% endfor %}",
    "{% for a in numbers %}{% for b in words %}{{ loop.index }}{{ a }}{{ b }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for a in range(10) %}{% if a == 2 %}{% continue %}{% endif %}{% if a == 5 %}{% break %}{% endif %}{{ a }}{% endfor %}",
    "{% set a = 1 %}{% for b in numbers %}{% set a = a + b %}{{ a }} {% endfor %}{{ a }}",
    "{% set ns = namespace(a=1, b='x') %}{% for b in numbers %}{% set ns.a = ns.a + b %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set a %}x{{ n }}\n y {% endset %}[{{ a }}]",
    "{% set a | upper | trim %} x{{ n }} {% endset %}[{{ a }}]",
    "{% if yes %}{% set a = 5 %}{% endif %}{{ a }}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=4, a=0) }}{{ f() }}|",
    "{% macro f(a) %}{% if a %}{{ a }}{{ f(a - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% set g = 'outer' %}{% macro f() %}{{ g }}{% set g = 'in' %}{{ g }}{% endmacro %}{{ f() }}{{ g }}",
    "{% macro f(x) %} {{ x }} {% endmacro %}{{ f('a') | trim }}{{ f('b').strip() }}",
    "{% for a in numbers %}{% macro f() %}m{% endmacro %}{{ f() }}{% endfor %}",
    "{% generation %}a{{ n }}{% endgeneration %}",
    "{# a comment #}a{#- b -#} c {# d\ne #}\nf",
    "{% raw %}{{ x }}{% if %}{% endraw %}y",
    "a {%- raw -%} {{ x }} {%- endraw -%} b",
    "a\n{% raw %}\n{{ x }}\n{% endraw %}\nb",
    "a\r\nb\rc\n",
    "a\n\n",
    "\n{{ n }}\n",
    "",
    "{",
    "a { b } c } {",
    "{{ n }}{{ n }}",
    "a   {{- n -}}   b",
    "a \n {{ n }} \n b",
    "  {% if yes %}\n  a\n  {% endif %}\n  b\n",
    "  {%+ if yes %}\n  a\n  {% endif +%}\n  b\n",
    "{% if yes -%}\n  a\n  {%- endif %}\n  b\n",
    "{%- if yes %}\n    {{- 'a' }}\n    {%- if no %}\n x\n    {%- endif %}\n{%- endif %}\nb",
    "a {% if yes %} b {% endif %} c",
    "x\t {% if yes %}\t\n\ty{% endif %}\t\n z",
    "{% if yes %}\n\n\na\n{% endif %}\n\n\nb",
    "a\n  {# c #}  \n  b",
    "a\n  {# c #}\n  b",
    "{% set a = 1 %}\n{% set b = 2 %}\n{{ a }}\n{{ b }}\n",
    "\u00a0{%- if yes %}\u2003{%- endif %}x",
    "{% if yes %}a{% endif %}\n{% if yes %}b{% endif %} \n{% if yes %}c{% endif %}",
    "   {{ n }}   {% if yes %}   {{ n }}\n   {% endif %}   ",
    "{% for a in numbers %}\n  {{ a }}\n{% endfor %}\n",
    "{% for a in numbers -%}\n  {{ a }}\n{%- endfor %}\n",
    "{%- for a in numbers %}\n  {{- a }}\n{%- endfor -%}\n\n  x",
    "{{ '{{' }}{{ '%}' }}{{ \"#}\" }}",
    "{{ {'a': {'b': {}}} }}",
    "{%if yes%}a{%else%}b{%endif%}{{n}}",
    "{% if yes %}{% if no %}{% else %}{% for a in numbers %}{% if loop.first %}{{ a }}{% endif %}{% endfor %}{% endif %}{% endif %}",
    # what fails
    "{{ raise_exception('no ' ~ n) }}",
    "{{ undefined_thing.x.y }}",
    "{{ undefined_thing.x() }}",
    "{{ undefined_thing + 1 }}",
    "{{ undefined_thing < 1 }}",
    "{{ 'a' + 1 }}",
    "{{ 'a' < 1 }}",
    "{{ 1 / 0 }}",
    "{{ 1 % 0 }}",
    "{{ n() }}",
    "{{ n.x() }}",
    "{{ 'a'.nothing() }}",
    "{{ nothing.x.y }}",
    "{{ text | no_such_filter }}",
    "{{ text is no_such_test }}",
    "{% for a in 5 %}{% endfor %}",
    "{% for a, b in [[1]] %}{% endfor %}",
    "{% set n.a = 1 %}",
    "{% endif %}",
    "{% if %}{% endif %}",
    "{% if yes %}",
    "{% for a %}{% endfor %}",
    "{% no_such_tag %}",
    "{% break %}",
    "{{ 1 + }}",
    "{{ (1 }}",
    "{{ 1 ) }}",
    "{{ [1, 2 }}",
    "{{ 'abc }}",
    "{{ a b }}",
    "{{ n",
    "{% if yes",
    "{# x",
    "{% raw %} x",
    "{{ $ }}",
    "{{ n | }}",
    "{{ n is }}",
    "{{ . }}",
    "{% set %}",
    "{% set 5 = 3 %}",
    "{% macro f(a %}{% endmacro %}",
    "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{% endmacro %}{{ f(b=2) }}",
    "{{ [1].append(2) }}",
    "{{ {[1]: 2} }}",
    "{{ '\\xZZ' }}",
    "{{ range(3, 1, 0) | list }}",
    "{{ undefined_thing | tojson }}",
    "{{ ''.split('') }}",
    "{{ ', '.join([1]) }}",
]


def render(env, template, variables):
    try:
        return {"expected": env.from_string(template).render(**variables)}
    except jinja2.exceptions.TemplateError as error:
        refused = type(error) is jinja2.exceptions.TemplateError
        return {"refused": str(error)} if refused else {"error": True}
    except (TypeError, ValueError, ZeroDivisionError, AttributeError, SyntaxError):
        return {"error": True}


def main():
    env = environment()
    families = []
    for name, template in FAMILIES.items():
        cases = []
        for talk in TALKS:
            messages = [{"role": role, "content": content} for role, content in talk]
            for prompt in (True, False):
                variables = dict(messages=messages, tools=None, documents=None, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>")
                cases.append({"messages": talk, "prompt": prompt, **render(env, template, variables)})
        families.append({"name": name, "template": template, "cases": cases})
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    base = dict(messages=messages, tools=None, documents=None, add_generation_prompt=True, bos_token="<s>", eos_token="</s>")
    rules = []
    for template in ["{{ " + e + " }}" for e in EXPRESSIONS] + STATEMENTS:
        rules.append({"template": template, **render(env, template, {**base, **VARIABLES})})
    with open(os.path.join(HERE, "chat.json"), "w") as f:
        json.dump({"now": NOW, "families": families, "variables": VARIABLES, "rules": rules}, f, indent=0, ensure_ascii=True)
        f.write("\n")


if __name__ == "__main__":
    main()
